"""The interface of a generation engine: requests, completions, errors, and what the engine guarantees.

A request is one prompt group, or one rollout continued by another turn. Weights may be loaded while requests are in
flight: the engine keeps their tokens and their KV cache, samples every later token with the new weights, and reports
that in the group's `end_weight` (as in PipelineRL, arXiv:2509.19128).
"""

from collections.abc import Awaitable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from runtime.generation.config import GenerationConfig, Sampling
from runtime.tasks.base import DataFailure
from runtime.wording import counted

Weights = Mapping[str, npt.NDArray[np.generic]]
"""Weights by the model's own names. numpy lacks bfloat16, so its bits travel as uint16."""

LONG_PROMPT_REMEDY = "have such prompts skipped, with async_rl.rollout_failure.max_skipped_prompts"
"""The remedy besides a shorter prompt and a higher limit (L7)."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupRequest:
    """`num_generations` completions of one prompt.

    The caller chooses `request_id`, unique among the requests in flight. `prompt_token_ids` has shape (P,), P >= 1.
    """

    request_id: str
    prompt_token_ids: npt.NDArray[np.int32]
    num_generations: int
    seed: int
    sampling: Sampling


@dataclass(frozen=True, slots=True, eq=False)
class GeneratedSequence:
    """One completion: T tokens, the stop token included.

    `logprobs` are the policy's at the request's temperature, before top_k and top_p, as the trainer recomputes them:
    log_softmax(logits / temperature). For greedy decoding they are at temperature 1. For an evaluation
    (`Sampling.purpose`) they are any finite numbers. `finished` is false if the length limit cut the completion off.
    """

    token_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    finished: bool


@dataclass(frozen=True, slots=True, eq=False)
class GeneratedGroup:
    """The completions of a request, in the order of siblings.

    `start_weight` is the version loaded when the request was submitted, `end_weight` the one that sampled its last
    token.
    """

    request_id: str
    sequences: tuple[GeneratedSequence, ...]
    start_weight: int
    end_weight: int


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """An engine's load, and its counters since it started."""

    version: int
    active_sequences: int
    waiting_groups: int
    generated_tokens: int
    busy_s: float
    """Seconds spent generating; `generated_tokens / busy_s` is the throughput while there was work."""


class Engine(Protocol):
    """An engine inside an asyncio process. All calls come from one event loop."""

    def submit(self, requests: Sequence[GroupRequest]) -> Sequence[Awaitable[GeneratedGroup]]:
        """Start requests together; one awaitable each, in their order.

        An awaitable raises GenerationAborted if the request was aborted, PolicyNotFinite if the weights are to blame.
        Raises PromptTooLong or RequestRefused at once, and then starts none of the requests.
        """

    def abort(self, request_id: str) -> bool:
        """Stop a request. Its awaitable raises GenerationAborted. Returns False if it is not in flight."""

    async def load_weights(self, weights: Weights, version: int) -> int:
        """Replace the weights and return the version that now runs. Requests in flight continue.

        Raises WeightsMismatch, and then keeps the old weights.
        """

    def health(self) -> EngineHealth:
        """Counters. Does not disturb requests in flight."""


class PromptTooLong(DataFailure):
    """A prompt has more tokens than `generation.max_prompt_tokens`: a data failure of that prompt."""

    def __init__(self, request_id: str, tokens: int, limit: int):
        self.request_id = request_id
        self.tokens = tokens
        self.limit = limit
        super().__init__(
            f"request {request_id!r}: its prompt has {counted(tokens, 'token')} and generation.max_prompt_tokens is "
            f"{limit}; shorten the prompt or leave it out of the data, raise the limit, or {LONG_PROMPT_REMEDY}"
        )

    def __reduce__(self) -> "tuple[type[PromptTooLong], tuple[str, int, int]]":
        return type(self), (self.request_id, self.tokens, self.limit)  # it crosses processes


class GenerationAborted(Exception):
    """The request was aborted before it finished. Its tokens are lost."""

    def __init__(self, request_id: str):
        self.request_id = request_id
        super().__init__(f"request {request_id!r} was aborted")


class RequestRefused(ValueError):
    """This engine, as configured, cannot serve the request."""


class WeightsMismatch(ValueError):
    """The weights to load are not those of the engine's model. Nothing was loaded."""

    @staticmethod
    def because(reason: str, *, version: int, kept: int) -> "WeightsMismatch":
        """The error for weights of `version`, refused by an engine that keeps version `kept`."""
        return WeightsMismatch(
            f"weight version {version} does not fit the model of this engine, which keeps version {kept}: {reason}; "
            "trainer and generation must load the same model directory"
        )


LOGITS_NOT_FINITE = "gave logits that are not finite"
"""In every message of PolicyNotFinite."""


class PolicyNotFinite(ArithmeticError):
    """The model's logits are not finite, so it has no distribution to sample from. Its weights are to blame."""

    def __init__(self, version: int, request_ids: tuple[str, ...]):
        self.version = version
        self.request_ids = request_ids
        super().__init__(
            f"weight version {version} {LOGITS_NOT_FINITE} for request {request_ids[0]!r} "
            f"and {len(request_ids) - 1} more; the training step before it has diverged: lower the learning rate "
            "or the gradient clip, and resume from the checkpoint before it"
        )

    def __reduce__(self) -> "tuple[type[PolicyNotFinite], tuple[int, tuple[str, ...]]]":
        return type(self), (self.version, self.request_ids)  # it crosses processes


def check_requests(requests: Sequence[GroupRequest], config: GenerationConfig, in_flight: Container[str]) -> None:
    """Raise PromptTooLong or RequestRefused for the first request that is not allowed, or whose id is not new.

    in_flight: the ids of the requests that the engine has.
    """
    for request in requests:
        name, siblings = f"request {request.request_id!r}", request.num_generations
        tokens, new_tokens = len(request.prompt_token_ids), request.sampling.max_new_tokens
        if tokens > config.max_prompt_tokens:
            raise PromptTooLong(request.request_id, tokens, config.max_prompt_tokens)
        if tokens == 0:
            raise RequestRefused(f"{name}: its prompt is empty; give it at least one token")
        if not 1 <= siblings <= config.engine.max_batch_sequences:
            raise RequestRefused(
                f"{name} asks for {siblings} generations and generation.engine.max_batch_sequences is "
                f"{config.engine.max_batch_sequences}: a group is decoded as a whole, so raise that, or ask for fewer"
            )
        if new_tokens > config.max_new_tokens:
            raise RequestRefused(
                f"{name} asks for {new_tokens} new tokens and generation.max_new_tokens is {config.max_new_tokens}: "
                "raise that, or ask for fewer"
            )
        if request.request_id in in_flight:
            raise RequestRefused(f"{name} is in flight already; ids are used once at a time")
    ids = [request.request_id for request in requests]
    if len(set(ids)) < len(ids):
        raise RequestRefused(f"request ids {ids}: each must occur once")
