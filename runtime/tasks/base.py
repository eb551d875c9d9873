"""The interfaces of tasks and of judges. Imports the standard library alone, since every verdict process imports it.

Item i of a task is a pure function of the configuration and i. So a run resumes from a number, and any machine can ask
for the same prompt twice.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


class DataFailure(Exception):
    """One prompt cannot be rolled out or rated, and only an immediate retry may help (L7).

    The base of every data failure. Its message names the prompt and what to change in the data.
    """


class TaskError(ValueError):
    """A task cannot be set up as configured. Raised before any rollout; the data or the configuration is wrong."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The rating of a rollout. Accuracy counts `correct`; training uses `reward`, a number within ±1e15."""

    reward: float
    correct: bool
    parts: Mapping[str, float] = field(default_factory=dict)
    """What the reward is made of, by name and unweighted. A part that a verdict lacks counts as 0."""


FinishReason = Literal["stop", "length"]
"""Whether a rollout ended by itself, or a length limit cut it off; the names of the OpenAI API."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What a rollout gives to be rated: the policy's texts, one a turn, without special tokens."""

    turns: tuple[str, ...]
    tokens: int
    """How many tokens the policy sampled, over all turns."""
    finish_reason: FinishReason

    @property
    def text(self) -> str:
        """The last turn; empty if there is none."""
        return self.turns[-1] if self.turns else ""


@dataclass(frozen=True, slots=True)
class Chat:
    """A prompt of several messages, as the tokenizer's chat template takes them."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas of the functions that the policy may call."""


@dataclass(frozen=True, slots=True)
class VerdictFault:
    """Why a rollout has no verdict: what happened, as in "raised ValueError", and what to do about it."""

    happened: str
    remedy: str
    infra: bool = False
    """No fault of the prompt or of the code that rates, such as a service out of reach: a retry may help (L7)."""
    of_code: bool = False
    """The code that rates cannot be loaded, which no item is to blame for: `happened` is all there is to say."""


class InfraFault(str):
    """Why a rollout has no verdict, where that is an infra failure (L7)."""

    __slots__ = ()


class NoReward(Exception):
    """A verifier returned something other than a reward. The message says what it did, as in "returned nan"."""

    def __init__(
        self, happened: str, remedy: str = "return a finite number, a bool, or a mapping of named parts"
    ) -> None:
        super().__init__(happened)
        self.remedy = remedy


Rate = Callable[..., Verdict]
"""Rates one case. Raises NoReward, and any error of the users' code."""
ResultOf = Callable[[Awaitable[Any]], object]
"""Waits for the result of a coroutine of users' code. Raises NoReward at its deadline, and its own errors."""


def wait_alone(awaitable: Awaitable[Any]) -> object:
    """The result of a coroutine, in a loop of its own and without a deadline."""

    async def wait() -> object:
        return await awaitable

    return asyncio.run(wait())


class Judge(Protocol):
    """Describes the code that rates a task's completions. It is pickled, and opened in the process where it rates."""

    @property
    def name(self) -> str:
        """As in messages: `verifier 'my_verifiers:names'`."""

    def open(self, result_of: ResultOf = wait_alone) -> Rate:
        """Import the code. Raises TaskError if it does not exist, and any error of its import."""


class Task(ABC):
    """One split of a task's prompts, training or held out. Does not run or import users' code."""

    num_prompts: int
    """The number of items; indices below are in [0, num_prompts)."""
    is_listed: bool = False
    """Whether all items exist from the start, as a file's lines do; false if each is drawn on request."""
    identity: str | None = None
    """A hash of all items and answers, where their number makes hashing them again too slow; None elsewhere."""
    weights: Mapping[str, float] = {}
    """Weights of the parts of its reward, by name; empty if all count alike."""

    def where(self, index: int) -> str:
        """Where a person finds item `index`: file and line, for a task from a file."""
        return f"item {index} ({self.prompt(index)!r:.80})"

    @abstractmethod
    def prompt(self, index: int) -> str:
        """The text of item `index`, as messages show it and as the split reads it."""

    def opening(self, index: int) -> str | Chat | None:
        """What is sent to the policy for item `index`: a text for `data.prompt_template`, or messages.

        None if an episode of an environment will say.
        """
        return self.prompt(index)

    def reference(self, index: int) -> str | None:
        """A correct completion, for supervised warm-up; None if the task knows none."""
        return None

    def columns(self, index: int) -> Mapping[str, Any]:
        """What code of users may read of item `index` besides its prompt and reference, by name."""
        return {}

    def demonstration(self, index: int) -> tuple[str, ...] | None:
        """A right rollout, for supervised warm-up: the prompt, then turns of policy and environment by turns."""
        reference = self.reference(index)
        return None if reference is None else (self.prompt(index), reference)


class OwnTask(Task):
    """A task whose verdicts are quick and the package's own: the reward worker computes them itself."""

    @abstractmethod
    def verify(self, index: int, completion: Completion, sibling: int) -> Verdict:
        """Rate a rollout of item `index`.

        sibling: the rollout's number in its group; it must not change the verdict.
        """


class JudgedTask(Task):
    """A task whose verdicts come from code of users or of other packages, in processes that can be killed."""

    judge: Judge
    verdict_timeout_s: float

    @abstractmethod
    def case(self, index: int, completion: Completion) -> tuple[Any, ...]:
        """The judge's arguments for a rollout of item `index`; they are pickled."""

    def blame(self, index: int, completion: Completion, fault: VerdictFault) -> str:
        """Why a rollout of item `index` has no verdict, and the remedy."""
        return fault.happened if fault.of_code else self.blame_rollout(index, completion, fault)

    @abstractmethod
    def blame_rollout(self, index: int, completion: Completion, fault: VerdictFault) -> str:
        """The same with the item and the completion, which may have caused the fault."""


Rated = Verdict | str
"""The verdict on a rollout, or why it has none: an InfraFault, or a data failure."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Rated groups."""

    groups: Sequence[tuple[Rated, ...]]
    """Per group, in order, its siblings in order."""
    notice: str | None
    """The verifier's output; a worker reports it once."""
