"""Tiny random models of many architectures, each as a directory with a tokenizer, and what the tests do with them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from runtime.groups import Rollout, RolloutGroup
from runtime.models.tiny import character_tokenizer
from runtime.training.config import LossConfig, OptimizerConfig, PolicyConfig
from runtime.training.ranks import Ranks
from runtime.training.trainer import StepTrainer

POSITIONS = 64
_COMMON = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.2,
}
_EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
_SCORED = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    **_EXPERTS,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_COMMON},
    "llama tied": {"model_type": "llama", "tie_word_embeddings": True, **_COMMON},
    "qwen3": {"model_type": "qwen3", "head_dim": 8, **_COMMON},
    "qwen3_moe": {"model_type": "qwen3_moe", "num_experts": 4, "head_dim": 8, **_EXPERTS, **_COMMON},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, **_COMMON},
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
        **_SCORED,
        **_COMMON,
        "num_key_value_heads": 4,
    },
    "glm4_moe": {"model_type": "glm4_moe", "head_dim": 8, **_SCORED, **_COMMON},
    "gpt_neox": {"model_type": "gpt_neox", **_COMMON},
    "gemma3_text": {
        "model_type": "gemma3_text",
        "head_dim": 8,
        "sliding_window": POSITIONS,
        "layer_types": ["sliding_attention", "full_attention"],
        **_COMMON,
    },
    "gpt2 tied": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": POSITIONS},
    "gpt2 untied": {
        "model_type": "gpt2",
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": POSITIONS,
        "tie_word_embeddings": False,
    },
}
"""By name, what AutoConfig makes each of."""
MIXTURES = ("qwen3_moe", "mixtral", "deepseek_v3", "glm4_moe")
BUFFERED = ("deepseek_v3", "glm4_moe")
"""Those with persistent buffers."""


def fresh(name: str, **options: Any) -> PreTrainedModel:
    """A random model of an architecture; persistent buffers are random as well, as in a model that was trained."""
    tokenizer = character_tokenizer()
    tokens = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.eos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = AutoConfig.for_model(**{**tokens, **ARCHITECTURES[name], **options})
    torch.manual_seed(3)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    persistent = model.state_dict().keys()
    for key, buffer in model.named_buffers():
        if key in persistent:
            buffer.copy_(torch.rand_like(buffer))
    return model


def save(name: str, directory: Path, dtype: torch.dtype = torch.float32, **options: Any) -> Path:
    """The directory of `fresh(name)`, its parameters in `dtype`."""
    model = fresh(name, **options)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.save_pretrained(directory)
    character_tokenizer().save_pretrained(directory)
    return directory


def trainer_of(directory: Path, *, ranks: Ranks | None = None, **policy: Any) -> StepTrainer:
    """A trainer whose steps move every weight by far more than rounding."""
    options = {"model_name": str(directory), "max_total_sequence_length": 32, "train_microbatch_tokens": 256}
    return StepTrainer(
        PolicyConfig.model_validate(options | policy), LossConfig(), OptimizerConfig(lr=1e-2, eps=1e-3), ranks=ranks
    )


def groups(count: int, seed: int = 0) -> list[RolloutGroup]:
    """Groups of random tokens and rewards."""
    rng = np.random.default_rng(seed)
    made = []
    for prompt in range(count):
        rollouts = []
        for _ in range(4):
            tokens = int(rng.integers(6, 20))
            mask = np.arange(tokens) >= 3
            rollouts.append(
                Rollout(
                    token_ids=rng.integers(3, 90, tokens).astype(np.int32),
                    loss_mask=mask,
                    logprobs=np.where(mask, -4.5, 0).astype(np.float32),
                    reward=float(rng.normal()),
                    finished=True,
                )
            )
        made.append(RolloutGroup(prompt=prompt, rollouts=tuple(rollouts), start_weight=0, end_weight=0))
    return made


def train_a_step(trainer: StepTrainer, seed: int = 0) -> None:
    trainer.accumulate(groups(2, seed), trainer.version)
    trainer.finish_step()


def logits_of(model: torch.nn.Module, tokens: int = 12) -> torch.Tensor:
    """Of a fixed sequence, in float32."""
    ids = torch.arange(3, 3 + tokens)[None, :]
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids).logits
    return logits.float()
