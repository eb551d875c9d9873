"""The interface of a generation engine: what goes in, what comes out, what it promises.

A request is one prompt group, or the continuation of one rollout by another turn. Weights may be loaded while
requests are in flight: what was computed stays (the KV cache is kept), every later token is sampled with the new
weights, and the group's `end_weight` says so (as in PipelineRL, arXiv:2509.19128).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Weights = Mapping[str, npt.NDArray[np.generic]]
"""Parameters by the model's own names. bfloat16, which numpy lacks, travels as its bits in uint16."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tokens of a request are drawn.

    `temperature` divides the logits, 0 takes the likeliest token. Of the tokens sorted by probability, `top_k` keeps
    the first k and `top_p` the fewest whose probabilities reach p; 1.0 and None keep all.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    max_new_tokens: int = 16

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.max_new_tokens < 1:
            raise ValueError(f"{self}: temperature is at least 0, top_p in (0, 1], max_new_tokens at least 1")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"{self}: top_k is at least 1, or None for all tokens")


@dataclass(frozen=True, slots=True, eq=False)
class GroupRequest:
    """`num_generations` completions of one prompt.

    `request_id` is the caller's, and unique among the requests in flight. `prompt_token_ids` has shape (P,), P >= 1.
    """

    request_id: str
    prompt_token_ids: npt.NDArray[np.int32]
    num_generations: int
    seed: int
    sampling: Sampling


@dataclass(frozen=True, slots=True, eq=False)
class GeneratedSequence:
    """One completion: T tokens, the stop token included.

    `logprobs` are those of the policy at the request's temperature, before top_k and top_p cut its tail (what the
    trainer recomputes as log_softmax(logits / temperature)); for greedy decoding, those at temperature 1.
    `finished` is false where the length limit cut it off.
    """

    token_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    finished: bool


@dataclass(frozen=True, slots=True, eq=False)
class GeneratedGroup:
    """The answer to a request: its completions in the order of siblings.

    `start_weight` is the version that was loaded when the request was submitted, `end_weight` the one that sampled
    its last token.
    """

    request_id: str
    sequences: tuple[GeneratedSequence, ...]
    start_weight: int
    end_weight: int


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """What an engine is doing, and what it has done since it was made."""

    version: int
    active_sequences: int
    waiting_groups: int
    generated_tokens: int
    busy_s: float
    """Seconds spent generating; `generated_tokens / busy_s` is the throughput while there was work."""
    kv_cache_bytes: int


class Engine(Protocol):
    """An engine inside an asyncio process. Calls come from one event loop."""

    def submit(self, requests: Sequence[GroupRequest]) -> Sequence[Awaitable[GeneratedGroup]]:
        """Start requests together; one awaitable each, in their order.

        Awaiting one raises GenerationAborted when it was aborted, PolicyNotFinite when the weights are to blame.
        Raises PromptTooLong or RequestRefused at once, and then none of the requests is started.
        """
        ...

    def abort(self, request_id: str) -> bool:
        """Stop a request. False when it is not in flight (it finished first, or never was)."""
        ...

    async def load_weights(self, weights: Weights, version: int) -> int:
        """Replace the weights and return the version that runs from now on. Requests in flight go on.

        Raises WeightsMismatch, and then the old weights stay.
        """
        ...

    def health(self) -> EngineHealth:
        """Counters, without disturbing what is in flight."""
        ...
