"""Judges: users' verifiers and reasoning-gym's scorers, as a verdict process loads and calls them.

Imports the standard library alone at the top, since every verdict process imports this module.
"""

import importlib
import inspect
import numbers
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from traceback import extract_tb
from typing import Any, Literal, Protocol, runtime_checkable

from runtime.tasks.base import NoReward, Rate, ResultOf, TaskError, Verdict, wait_alone

LARGEST = 1e15
"""Largest reward, of either sign. The norm of a gradient squares in float32, whose range ends at 3.4e38, and without
normalize_rewards a gradient is as large as the rewards are; so far below the root of that, 1.8e19."""
NAMES_MAX = 64
"""Most different names that the parts of a task's rewards may have; each is a metric."""
NAME_MAX = 200
"""Most characters of such a name."""
_OWN = "runtime.tasks.verifiers:"
_ROW_TYPE = re.compile(r"(\w+\.)*(dict|Dict|Mapping|Row)\b")


@dataclass(frozen=True, slots=True)
class Verifier:
    """A function `module:function`, and what its reward counts for."""

    target: str
    weight: float
    name: str | None
    """The name of its part of the reward; None for the only verifier of a task."""


@dataclass(frozen=True, slots=True)
class FunctionJudge:
    """Functions of users: the reward is the weighted sum of theirs. Rates a completion's text and its row."""

    verifiers: tuple[Verifier, ...]
    correct_at: float
    correct_from: str | None

    @property
    def name(self) -> str:
        targets = ", ".join(repr(verifier.target) for verifier in self.verifiers)
        return f"verifier {targets}" if len(self.verifiers) == 1 else f"one of the verifiers {targets}"

    @property
    def takes_answers(self) -> bool:
        """Whether all verifiers are the package's own, which read an answer; only importing others would tell."""
        return all(verifier.target.startswith(_OWN) for verifier in self.verifiers)

    def open(self, result_of: ResultOf = wait_alone) -> Rate:
        rated_by = [(verifier, _called(verifier.target)) for verifier in self.verifiers]
        names: set[str] = set()

        def rate(completion: str, row: Mapping[str, Any]) -> Verdict:
            rated: list[tuple[Verifier, _Rated]] = []
            for verifier, call in rated_by:
                returned = call(completion, row)
                if inspect.isawaitable(returned):
                    returned = result_of(returned)
                rated.append((verifier, _rated(verifier, returned)))
            verdict = self._total(rated)
            if len(named := names | verdict.parts.keys()) > NAMES_MAX:
                raise NoReward(f"has named more than {NAMES_MAX} parts by now, such as {sorted(named)[:3]}", _FEW_NAMES)
            names.update(named)
            return verdict

        return rate

    def _total(self, rated: "list[tuple[Verifier, _Rated]]") -> Verdict:
        """The weighted sum. Every `correct` that functions returned decides, or that of `correct_from` alone."""
        parts: dict[str, float] = {}
        for verifier, each in rated:
            if verifier.name is None:
                parts |= each.parts
            else:
                parts[verifier.name] = each.reward
                parts |= {f"{verifier.name}/{part}": value for part, value in each.parts.items()}
        reward = sum(verifier.weight * each.reward for verifier, each in rated)
        if not abs(reward) <= LARGEST:
            raise NoReward(f"returned {parts}, whose weighted sum is {reward}", "make rewards and weights smaller")
        if self.correct_from is not None and self.correct_from not in parts:
            raise NoReward(f"returned the parts {sorted(parts)} without {self.correct_from!r}", _NO_SUCH_PART)
        deciding = [each for verifier, each in rated if self.correct_from in (None, verifier.name)]
        told = [each.correct for each in deciding if each.correct is not None]
        compared = reward if self.correct_from is None else parts[self.correct_from]
        return Verdict(reward, all(told) if told else compared >= self.correct_at, parts)


_FEW_NAMES = "give parts the same few names for every completion, since each name is a metric"
_YES_OR_NO = "return True or False as 'correct', and a share of what is right under another name"
_NO_SUCH_PART = "correct data.task.correct_from, or give every mapping this part"


@dataclass(frozen=True, slots=True)
class _Rated:
    """What one function returned."""

    reward: float
    correct: bool | None
    """None if it did not say."""
    parts: Mapping[str, float]


def _called(target: str) -> Callable[[str, Mapping[str, Any]], object]:
    """The function that `target` names, to be called with the completion and its row."""
    function = load_verifier(target)
    _refuse_other_callers(target, function)
    if takes_row(function):
        return function

    def with_answer(completion: str, row: Mapping[str, Any]) -> object:
        if row["answer"] is None:
            raise NoReward(
                "was not called: it takes an answer, and there is none",
                "give each prompt an answer, or name the verifier's second parameter `row` and read other columns",
            )
        return function(completion, row["answer"])

    return with_answer


def _refuse_other_callers(target: str, function: Callable[..., Any]) -> None:
    """Raises TaskError for a function that cannot be called with two values, as those of other libraries cannot."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C
        return
    try:
        signature.bind("", "")
    except TypeError:
        likeness = [looks for names, looks in _OTHER_CALLERS if names & signature.parameters.keys()]
        raise TaskError(
            f"the verifier {target!r}: it is called once a rollout, with (completion, answer) or (completion, row), "
            f"and takes {signature}{likeness[0] if likeness else ''}; write a function of these two that calls it"
        ) from None


_OTHER_CALLERS = (
    ({"completions", "prompts"}, ", as TRL's do, which rate a list of completions"),
    ({"solution_str", "data_source"}, ", as verl's compute_score does"),
)
"""Names of parameters by which a verifier of another library is known."""


def takes_row(function: Callable[..., Any]) -> bool:
    """Whether a verifier's second parameter is named `row`, or annotated as a mapping; if not, it is the answer."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C
        return False
    if len(parameters) < 2:
        return False
    annotation = parameters[1].annotation
    said = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return parameters[1].name == "row" or _ROW_TYPE.match(said) is not None


def _rated(verifier: Verifier, returned: object) -> "_Rated":
    """Raises NoReward."""
    try:
        if not isinstance(returned, Mapping):
            return _Rated(as_reward(returned), None, {})
        values = {as_name(key): _part(key, value) for key, value in returned.items()}
        if values.get("correct", 0) not in (0, 1):
            raise NoReward(f"returned {shown(returned['correct'])} as 'correct'", _YES_OR_NO)
    except NoReward as error:
        by = "" if verifier.name is None else f" as {verifier.name!r} ({verifier.target})"
        raise NoReward(f"{error}{by}", error.remedy) from error
    correct = None if "correct" not in values else bool(values.pop("correct"))
    total = values.pop("reward", None)
    return _Rated(sum(values.values()) if total is None else total, correct, values)


def _part(name: str, value: object) -> float:
    try:
        return as_reward(value)
    except NoReward as error:
        raise NoReward(f"{error} as the part {name!r}", error.remedy) from error


def as_name(key: object) -> str:
    """The name of a part: printable text. Raises NoReward."""
    if not isinstance(key, str) or not 0 < len(key) <= NAME_MAX or not key.isprintable():
        raise NoReward(
            f"returned a mapping with the key {shown(key)}",
            f"name each part of the reward with a printable text of at most {NAME_MAX} characters",
        )
    return key


@dataclass(frozen=True, slots=True)
class GymJudge:
    """The scorer of a reasoning-gym dataset, and how its scores become rewards."""

    dataset: str
    options: dict[str, Any]
    seed: int
    size: int
    correct_at: float
    reward: Literal["binary", "score"]
    junk_at_most: float

    @property
    def name(self) -> str:
        return f"the scorer of reasoning_gym {self.dataset!r}"

    def open(self, result_of: ResultOf = wait_alone) -> Rate:
        import reasoning_gym

        dataset = reasoning_gym.create_dataset(self.dataset, size=self.size, seed=self.seed, **self.options)

        def rate(answer: str | None, entry: dict[str, Any]) -> Verdict:
            if answer is None:  # the completion has none
                return Verdict(reward=0.0, correct=False)
            score = as_reward(dataset.score_answer(answer=answer, entry=entry))
            correct = score >= self.correct_at
            if self.reward == "binary":
                return Verdict(reward=float(correct), correct=correct)
            return Verdict(reward=0.0 if 0 <= score <= self.junk_at_most else score, correct=correct)

        return rate


_ONE_AT_A_TIME = "return one number: a verifier gets one completion, and no list of them as in TRL"


@runtime_checkable
class _Scalar(Protocol):
    """An array or tensor, as of numpy and torch, that can give its one element as a Python number."""

    def item(self) -> object: ...


def as_reward(returned: object) -> float:
    """The reward that a verifier returned: any finite number of Python or numpy, or a tensor with one element.

    Raises NoReward.
    """
    number = returned
    if isinstance(returned, _Scalar) and not isinstance(returned, type):
        try:
            number = returned.item()
        except Exception as error:
            raise NoReward(f"returned {shown(returned)}, whose item() raised {type(error).__name__}") from error
    if not isinstance(number, numbers.Real) or not -LARGEST <= number <= LARGEST:  # type: ignore[operator]  # as NaN is
        remedy: tuple[str, ...] = ()
        if isinstance(returned, list | tuple):
            remedy = (_ONE_AT_A_TIME,)
        elif isinstance(returned, Decimal):
            remedy = ("return float() of it",)
        raise NoReward(f"returned {shown(returned)}", *remedy)
    return float(number)


def shown(value: object) -> str:
    """At most 200 characters of the repr of a user's value. The repr itself may fail."""
    try:
        return f"{value!r:.200}"
    except Exception as error:
        return f"a {type(value).__name__} (whose repr raised {type(error).__name__})"


def named_in_module(target: str, what: str, kind: str) -> tuple[str, str, dict[str, Any]]:
    """The module and the name in `module:name`, and all that the module has. Raises TaskError if it cannot be imported.

    what, kind: as in messages: "the verifier", "function".
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise TaskError(f"{what} {target!r}: write it as module:{kind}")
    try:
        return module_name, name, vars(importlib.import_module(module_name))
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        remedy = "it must be importable where evenstep runs (installed, or in PYTHONPATH)"
        if not is_absent:
            remedy = "install what it imports there, or correct that line"
        place = "" if is_absent else _place_in_module(error)
        raise TaskError(f"{what} {target!r}: importing {module_name} failed: {error}{place}; {remedy}") from error


def _place_in_module(error: ImportError) -> str:
    """` (file:line)` of the module that was to be imported, where it imports something else; "" if it has no file."""
    frames = [at for at in extract_tb(error.__traceback__) if at.filename not in (__file__, importlib.__file__)]
    frames = [at for at in frames if not at.filename.startswith("<")]
    own = [at for at in frames if at.filename == frames[0].filename]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def load_verifier(target: str) -> Callable[..., Any]:
    """The function that `module:function` names. Raises TaskError if it cannot be imported."""
    module_name, function_name, members = named_in_module(target, "the verifier", "function")
    if not callable(members.get(function_name)):
        own = (member for member in members.values() if inspect.isfunction(member) and member.__module__ == module_name)
        functions = sorted(function.__name__ for function in own if not function.__name__.startswith("_"))
        raise TaskError(
            f"the verifier {target!r}: {module_name} has no function {function_name!r}; it has "
            f"{', '.join(functions) or 'none'}"
        )
    verifier: Callable[..., Any] = members[function_name]
    return verifier
