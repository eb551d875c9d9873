"""Small models, requests, and plain re-computations that the engine is compared with."""

import numpy as np
import numpy.typing as npt
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from runtime.generation.config import GenerationConfig, Sampling, TorchEngineConfig
from runtime.generation.engine import GeneratedGroup, GeneratedSequence, GroupRequest
from runtime.generation.on_torch.engine import TorchEngine

END = 1


def small_llama() -> PreTrainedModel:
    """Rotary positions, grouped-query attention and tied embeddings, which GPT-2 has not."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=60,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=64,
                initializer_range=0.3,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=END,
            )
        )


def make_config(*, max_batch_sequences: int = 64, batching: str = "continuous", **options: object) -> GenerationConfig:
    engine = TorchEngineConfig.model_validate({"max_batch_sequences": max_batch_sequences, "batching": batching})
    return GenerationConfig.model_validate({"engine": engine, "max_new_tokens": 12, "max_prompt_tokens": 16, **options})


def make_engine(model: PreTrainedModel, config: GenerationConfig | None = None, version: int = 0) -> TorchEngine:
    return TorchEngine(model, config or make_config(), stop_token_ids=[END], version=version)


def make_request(
    request_id: str,
    prompt: list[int] | None = None,
    *,
    num_generations: int = 4,
    seed: int = 0,
    **sampling: object,
) -> GroupRequest:
    return GroupRequest(
        request_id=request_id,
        prompt_token_ids=np.array(prompt or [5, 9, 30, 12, 40], dtype=np.int32),
        num_generations=num_generations,
        seed=seed,
        sampling=Sampling(**{"max_new_tokens": 12, **sampling}),  # type: ignore[arg-type]
    )


def run(engine: TorchEngine) -> dict[str, GeneratedGroup]:
    finished: dict[str, GeneratedGroup] = {}
    while engine.has_work:
        finished.update({group.request_id: group for group in engine.step()})
    return finished


def plain_logprobs(
    model: PreTrainedModel, request: GroupRequest, sequence: GeneratedSequence
) -> npt.NDArray[np.float32]:
    """Log-probabilities of a completion from one forward pass over all of it, without a cache or a batch."""
    ids = torch.tensor([*request.prompt_token_ids.tolist(), *sequence.token_ids.tolist()])
    with torch.no_grad():
        logits = model(input_ids=ids[None], attention_mask=torch.ones_like(ids[None])).logits[0]
    logprobs = torch.log_softmax(logits.float() / (request.sampling.temperature or 1.0), dim=-1)
    start = len(request.prompt_token_ids)
    picked = logprobs[start - 1 : -1].gather(1, ids[start:, None])[:, 0]
    return picked.numpy()
