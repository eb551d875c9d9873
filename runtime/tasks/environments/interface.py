"""What an environment implements. Imports the standard library alone, since every environment process imports it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from runtime.tasks.base import Chat, Completion, Verdict

Message = Mapping[str, Any]
"""As in `Chat`: {"role": "user", "content": "…"}."""
Answer = str | Sequence[Message] | None
"""An environment's answer to a turn. A text is a user's message in a chat. None ends the episode."""


class Episode(ABC):
    """One rollout. Its methods are awaited one at a time, in a thread and on an event loop that only it uses.

    So it may block, and must not use what is bound to another thread or loop. What a method raises is a data failure of
    the prompt (L7), or an infra failure if it shows that something is out of reach, as a ConnectionError does
    (docs/failures.md). Each call has a deadline, `data.task.timeout_s`.
    """

    prompt: str | Chat
    """What the policy is asked: a text for `data.prompt_template`, or messages. Equal for all episodes of an item."""

    @abstractmethod
    async def respond(self, turn: str) -> Answer:
        """Answer the policy's turn, its text without special tokens.

        It is not called after a turn that a length limit cut off, nor after `data.max_turns` turns. An answer that
        would exceed `generation.max_prompt_tokens`, earlier turns included, ends the rollout as truncated.
        """

    @abstractmethod
    async def verdict(self, completion: Completion) -> Verdict:
        """Rate the rollout after its last turn. Every verdict has the same names of parts, at most 64.

        Reward and parts are numbers within ±1e15, as verifiers' are (docs/tasks.md); `correct` is a bool, 0 or 1.
        Anything else is a data failure.
        """

    async def close(self) -> None:  # noqa: B027 - most have nothing to free
        """Free what the episode holds. Called at its end, whatever the end; a call in progress is cancelled before."""


class Environment(ABC):
    """Opens episodes of one split. Made once a process and split, as `Class(split=…, seed=…, **options)`.

    Item i must depend on split, seed, options and i alone: it is opened once for every sibling, in any process, and
    again after a resume. No item of "validation" may occur in "training".
    """

    num_items: int | None = None
    """How many items the split has; None if they are drawn: `data.num_prompts`, or `data.validation_size`."""

    @abstractmethod
    def __init__(self, *, split: Literal["training", "validation"], seed: int) -> None:
        """Takes `data.task.options` as further keyword arguments. `seed` is data.seed."""

    @abstractmethod
    async def open(self, index: int) -> Episode:
        """Begin an episode of item `index`, with its `prompt`."""

    def demonstration(self, index: int) -> Sequence[str] | None:
        """A right rollout of item `index`, for the tiny model's supervised warm-up; None if there is none.

        The prompt, the policy's turn, the environment's answer, the policy's next turn, and so on. The warm-up learns
        the policy's turns.
        """
        return None
