"""The `generation:` block, with NeMo-RL's names (`policy.generation`) for the keys that it has too."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from fsm.config.strict import Strict

TOP_K_MAX = 2**31 - 1
"""Engines hold `top_k` in 32 or 64 bits."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tokens of a request are drawn.

    `temperature` divides the logits; 0 takes the likeliest token. Of the tokens sorted by probability, `top_k` keeps
    the first k and `top_p` the fewest whose probabilities reach p. None and 1.0 keep all. For an `evaluation` nobody
    needs the log-probabilities, and an engine may report others than the policy's.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    max_new_tokens: int = 16
    purpose: Literal["training", "evaluation"] = "training"

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.max_new_tokens < 1:
            raise ValueError(f"{self}: temperature is at least 0, top_p in (0, 1], max_new_tokens at least 1")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"{self}: top_k is at least 1, or None for all tokens")


class TorchEngineConfig(Strict):
    """The built-in engine: a transformers causal LM, decoded one token a step for all sequences at once."""

    name: Literal["torch"] = Field(default="torch", description="The torch engine.")
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="Type of weights and cache; on a CPU without bfloat16 instructions float32 is four times faster.",
    )
    max_batch_sequences: int = Field(
        default=256, ge=1, description="Sequences decoded at a time. A group is admitted whole: at least its siblings."
    )
    batching: Literal["continuous", "whole"] = Field(
        default="continuous",
        description="continuous: groups join as soon as there is room. whole: the groups of one submission are decoded "
        "by themselves, so that they depend on their seeds and the weights alone, bit for bit, unless one is retried.",
    )
    threads: int = Field(
        default=1,
        ge=1,
        description="Threads of torch on a CPU; more than there are free cores makes small models many times slower.",
    )
    device: str = Field(default="cpu", min_length=1, description="Device of the model, such as cpu or cuda.")


class VllmEngineConfig(Strict):
    """vLLM's asynchronous engine (an extra)."""

    name: Literal["vllm"] = Field(default="vllm", description="The vLLM engine.")
    precision: Literal["float32", "bfloat16", "auto"] = Field(
        default="auto", description="Type of the weights; auto: the model's own."
    )
    tensor_parallel_size: int = Field(default=1, ge=1, description="GPUs that share one copy of the model.")
    gpu_memory_utilization: float = Field(default=0.8, gt=0, le=1, description="Share of a GPU's memory to use.")
    enforce_eager: bool = Field(default=False, description="Do not capture CUDA graphs.")
    max_batch_sequences: int = Field(default=256, ge=1, description="Sequences decoded at a time.")
    kv_cache_memory_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Bytes of the KV cache; null: on GPUs the rest of gpu_memory_utilization, on a CPU 512 MiB.",
    )
    threads: int = Field(default=1, ge=1, description="Threads of each of vLLM's processes on a CPU.")


EngineConfig = Annotated[TorchEngineConfig | VllmEngineConfig, Field(discriminator="name")]


class GenerationConfig(Strict):
    """How completions are sampled, and by which engine."""

    engine: EngineConfig = Field(default=TorchEngineConfig(), description="The engine and its options.")
    temperature: float = Field(
        default=1.0, ge=0, description="Divides the logits; 0 is greedy decoding, under which siblings are equal."
    )
    top_p: float = Field(
        default=1.0, gt=0, le=1, description="Sample among the fewest likeliest tokens that reach this probability."
    )
    top_k: int | None = Field(
        default=None, ge=1, le=TOP_K_MAX, description="Sample among this many of the likeliest tokens; null: all."
    )
    max_new_tokens: int = Field(default=16, ge=1, description="Longest completion of a turn, in tokens.")
    max_prompt_tokens: int = Field(
        default=64,
        ge=1,
        description="Longest prompt, in tokens, templates and earlier turns included. Lines of a file and held-out "
        "prompts are counted at the start; a longer one that is drawn later is a data failure. An environment's turn "
        "that would exceed it ends the rollout as truncated.",
    )
    stop_token_ids: tuple[int, ...] = Field(
        default=(),
        strict=False,
        description="Tokens that end a completion, in addition to the model's own: the tokenizer's end-of-text token "
        "and eos_token_id of generation_config.json and config.json.",
    )

    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.top_k, self.max_new_tokens)
