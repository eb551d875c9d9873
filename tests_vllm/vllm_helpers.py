"""A vLLM engine that tests share (it takes 15 to 30 s to start), and re-computations with transformers alone."""

import asyncio
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from transformers import GPT2LMHeadModel, PreTrainedModel

from runtime.generation.config import GenerationConfig, Sampling, VllmEngineConfig
from runtime.generation.engine import GeneratedGroup, GeneratedSequence, GroupRequest
from runtime.generation.on_vllm.engine import VllmEngine
from runtime.models.config import TinyModelConfig
from runtime.models.tiny import character_tokenizer, save_tiny_model, tiny_model

END = 1
TOLERANCE = 1e-4
"""Of log-probabilities in float32: vLLM and transformers add up in another order."""
MODEL = TinyModelConfig(max_positions=512)
Result = TypeVar("Result")


@dataclass
class Running:
    """An engine that was entered, and the event loop that it belongs to."""

    engine: VllmEngine
    runner: asyncio.Runner

    def run(self, scenario: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(scenario)

    def generate(self, *requests: GroupRequest) -> list[GeneratedGroup]:
        async def scenario() -> list[GeneratedGroup]:
            return list(await asyncio.gather(*self.engine.submit(requests)))

        return self.run(scenario())


def make_policy(seed: int) -> GPT2LMHeadModel:
    return tiny_model(character_tokenizer(), MODEL, seed).eval()


def open_engine(directory: Path, runner: asyncio.Runner, **options: object) -> VllmEngine:
    """An engine for `make_policy(0)`."""
    save_tiny_model(directory, MODEL, seed=0)
    engine = VllmEngineConfig(precision="float32", enforce_eager=True, max_batch_sequences=64)
    config = GenerationConfig.model_validate(
        {"engine": engine, "max_new_tokens": 100, "max_prompt_tokens": 300, **options}
    )
    vllm = VllmEngine(directory, config, stop_token_ids=[END])
    return runner.run(vllm.__aenter__())


def make_request(
    request_id: str, prompt: list[int] | None = None, *, num_generations: int = 4, seed: int = 0, **sampling: object
) -> GroupRequest:
    return GroupRequest(
        request_id=request_id,
        prompt_token_ids=np.array(prompt or [5, 9, 30, 12, 40], dtype=np.int32),
        num_generations=num_generations,
        seed=seed,
        sampling=Sampling(**{"max_new_tokens": 24, **sampling}),  # type: ignore[arg-type]
    )


def plain_logprobs(
    model: PreTrainedModel, request: GroupRequest, sequence: GeneratedSequence
) -> npt.NDArray[np.float32]:
    """Log-probabilities of a completion from one forward pass over all of it."""
    ids = torch.tensor([*request.prompt_token_ids.tolist(), *sequence.token_ids.tolist()])
    with torch.no_grad():
        logits = model(input_ids=ids[None]).logits[0]
    logprobs = torch.log_softmax(logits.float() / (request.sampling.temperature or 1.0), dim=-1)
    start = len(request.prompt_token_ids)
    return logprobs[start - 1 : -1].gather(1, ids[start:, None])[:, 0].numpy()


def swapped_logprobs(
    old: PreTrainedModel, new: PreTrainedModel, request: GroupRequest, sequence: GeneratedSequence, swap: int
) -> npt.NDArray[np.float32]:
    """The same, `swap` tokens under `old` and the rest under `new`, over the keys and values that `old` left."""
    cache, ids, logprobs = None, torch.tensor([request.prompt_token_ids.tolist()]), []
    for place, token in enumerate(sequence.token_ids.tolist()):
        with torch.no_grad():
            output = (old if place < swap else new)(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        logprobs.append(float(torch.log_softmax(output.logits[0, -1].float(), -1)[token]))
        ids = torch.tensor([[token]])
    return np.array(logprobs, dtype=np.float32)


def tokens(group: GeneratedGroup) -> list[list[int]]:
    return [sequence.token_ids.tolist() for sequence in group.sequences]


async def outcome(awaitable: Awaitable[Result]) -> Result | BaseException:
    (result,) = await asyncio.gather(awaitable, return_exceptions=True)
    return result
