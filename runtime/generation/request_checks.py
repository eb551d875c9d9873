"""What every engine refuses before it starts a request."""

from __future__ import annotations

from collections.abc import Container, Sequence

from runtime.generation.config import GenerationConfig
from runtime.generation.engine import GroupRequest
from runtime.generation.errors import PromptTooLong, RequestRefused


def check_requests(requests: Sequence[GroupRequest], config: GenerationConfig, in_flight: Container[str]) -> None:
    """Raises PromptTooLong or RequestRefused for the first request that is not allowed, or whose id is not new.

    in_flight: the ids of the requests that the engine has.
    """
    for request in requests:
        _check(request, config)
        if request.request_id in in_flight:
            raise RequestRefused(f"request {request.request_id!r} is in flight already; ids are used once at a time")
    ids = [request.request_id for request in requests]
    if len(set(ids)) < len(ids):
        raise RequestRefused(f"request ids {ids}: each must occur once")


def _check(request: GroupRequest, config: GenerationConfig) -> None:
    tokens = len(request.prompt_token_ids)
    if tokens > config.max_prompt_tokens:
        raise PromptTooLong(request.request_id, tokens, config.max_prompt_tokens)
    if tokens == 0:
        raise RequestRefused(f"request {request.request_id!r}: its prompt is empty; give it at least one token")
    if not 1 <= request.num_generations <= config.engine.max_batch_sequences:
        raise RequestRefused(
            f"request {request.request_id!r} asks for {request.num_generations} generations and "
            f"generation.engine.max_batch_sequences is {config.engine.max_batch_sequences}: a group is decoded "
            "as a whole, so raise that, or ask for fewer"
        )
    if request.sampling.max_new_tokens > config.max_new_tokens:
        raise RequestRefused(
            f"request {request.request_id!r} asks for {request.sampling.max_new_tokens} new tokens and "
            f"generation.max_new_tokens is {config.max_new_tokens}: raise that, or ask for fewer"
        )
