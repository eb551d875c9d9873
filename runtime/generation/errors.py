"""What generation refuses, by who is to blame: the data, the configuration, the model or its weights."""

from __future__ import annotations

from runtime.tasks.errors import DataFailure

LONG_PROMPT_REMEDY = "have such prompts skipped, with async_rl.rollout_failure.max_skipped_prompts"
"""What helps beside a shorter prompt and a higher limit (L7)."""


class PromptTooLong(DataFailure):
    """A prompt has more tokens than `generation.max_prompt_tokens`: a data failure of that prompt."""

    def __init__(self, request_id: str, tokens: int, limit: int):
        self.request_id = request_id
        self.tokens = tokens
        self.limit = limit
        super().__init__(
            f"request {request_id!r}: its prompt has {tokens} tokens and generation.max_prompt_tokens is {limit}; "
            f"shorten the prompt or leave it out of the data, raise the limit, or {LONG_PROMPT_REMEDY}"
        )

    def __reduce__(self) -> tuple[type[PromptTooLong], tuple[str, int, int]]:
        return type(self), (self.request_id, self.tokens, self.limit)  # it crosses processes


class GenerationAborted(Exception):
    """The request was aborted before it finished. Its tokens are gone."""

    def __init__(self, request_id: str):
        self.request_id = request_id
        super().__init__(f"request {request_id!r} was aborted")


class RequestRefused(ValueError):
    """The caller asked for what this engine cannot do as configured."""


class WeightsMismatch(ValueError):
    """The weights to load are not those of this model. Nothing was loaded."""


class PolicyNotFinite(ArithmeticError):
    """The model's logits are not finite, so there is no distribution to sample from: its weights are to blame."""

    def __init__(self, version: int, request_ids: tuple[str, ...]):
        self.version = version
        self.request_ids = request_ids
        super().__init__(
            f"weight version {version} gave logits that are not finite for request {request_ids[0]!r} "
            f"and {len(request_ids) - 1} more; the training step before it has diverged: lower the learning rate "
            "or the gradient clip, and resume from the checkpoint before it"
        )
