"""A counterexample with prompts instead of classes: the moves of a scenario that make the real core do the same.

An answer of the checker names a class. Here the real core is driven along (`specs.scenarios.world.World`), and the
first dispatched group of the class gives the answer. After every move the counts must be those of the counterexample.

To the checker, whether a failed attempt is retried is the world's decision; a real run has budgets (L7). So budgets of
attempts are tried until the story can happen. Some stories fit none: `Untold` says why.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from fsm.config.blocks import RunConfig
from fsm.config.parse import parse_config
from fsm.errors import EvenstepError
from fsm.events import GroupRecord
from fsm.groups.roster import Group
from fsm.samplers.protocol import labelling
from fsm.state import GroupClass, State
from specs.check.cases import Case, laws_in
from specs.checker.explore import Result
from specs.counterexample import replay
from specs.model import CORE, Answer, CrashFrom, canonical
from specs.properties.kinds import REFUSED
from specs.scenarios.file import parse_move
from specs.scenarios.run import make_move
from specs.scenarios.world import World, WorldMistake

_BACKOFF_S = 1_000.0
_ATTEMPTS = (1, 2, 3, 4)
"""The budgets of infra attempts that are tried; stories rarely retry more often."""
_ENOUGH_ATTEMPTS = 1_000


class Untold(Exception):
    """The story cannot be told with prompts. The message says why."""


class ConcreteAnswer(NamedTuple):
    """One answer with prompts."""

    answer: Answer
    prompt: int | None
    """The prompt of the group that it is about; None if it is about no group."""
    moves: tuple[Any, ...]
    """As a scenario file has them."""


class Concrete(NamedTuple):
    """A counterexample that the real core has followed to its end."""

    config: dict[str, Any]
    """The `config` of a scenario."""
    num_prompts: int
    told: tuple[ConcreteAnswer, ...]
    world: World
    """At the end."""


def concrete(case: Case, result: Result) -> Concrete:
    """The counterexample with prompts. Raises Untold."""
    if result.broken == REFUSED:
        raise Untold("its last answer makes the core raise an error, after which there is no state to expect")
    laws = laws_in(case)
    states = [told.situation.state for told in replay(laws, case.world, CORE, result.counterexample)]
    reasons: list[str] = []
    for config in _budgets(case.scaled.config, {answer.name for answer in result.counterexample}):
        world = World(config, case.scaled.num_prompts, check_setup=False)
        try:
            told = tuple(_follow(world, result.counterexample, states, case.world.crash))
        except Untold as reason:
            reasons.append(str(reason))
            continue
        return Concrete(document_of(config), case.scaled.num_prompts, told, world)
    raise Untold(reasons[-1])


def _budgets(config: RunConfig, names: Iterable[str]) -> Iterator[RunConfig]:
    """The configuration with each budget of attempts, and with the backoff that the story needs."""
    answers = set(names)
    document = config.model_dump(include={"grpo", "async_rl", "loss_fn"})
    failure = document["async_rl"]["rollout_failure"]
    failure["max_data_attempts_per_prompt"] = 1 if "skip" in answers else _ENOUGH_ATTEMPTS
    backs_off = "back_off" in answers
    failure["backoff_base_s"] = failure["max_backoff_s"] = _BACKOFF_S if backs_off else 0.0
    budgets = _ATTEMPTS if "drop" in answers else (_ENOUGH_ATTEMPTS,)
    for attempts in budgets:
        failure["max_infra_attempts_per_prompt"] = attempts
        yield parse_config(document, check=False)


def document_of(config: RunConfig) -> dict[str, Any]:
    """The configuration as a scenario file has it: what differs from the defaults, under which backoff is 0."""
    document = config.model_dump(include={"grpo", "async_rl"})
    defaults = RunConfig().model_dump(include={"grpo", "async_rl"})
    defaults["async_rl"]["rollout_failure"]["backoff_base_s"] = 0.0
    sampler = document["async_rl"].pop("sampler")
    options = sampler.pop("options", {})
    defaults["async_rl"].pop("sampler")
    changed = _differs(document, defaults)
    changed.setdefault("async_rl", {})["sampler"] = {**sampler, **options}
    return changed


def _differs(document: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, dict):
            inner = _differs(value, defaults[key])
            if inner:
                found[key] = inner
        elif value != defaults[key]:
            found[key] = value
    return found


def _follow(
    world: World, answers: Iterable[Answer], states: Iterable[State], crash: CrashFrom
) -> Iterator[ConcreteAnswer]:
    """Drive the world along. Raises Untold if it cannot follow, or if the counts differ."""
    for number, (answer, state) in enumerate(zip(answers, states, strict=True), start=1):
        try:
            prompt, moves = _moves_of(world, answer, crash)
            for move in moves:
                make_move(world, parse_move(number, move))
        except (WorldMistake, EvenstepError) as mistake:
            raise Untold(f"answer {number}, {answer.name}: {mistake}") from mistake
        if canonical(world.core.state) != canonical(state):
            raise Untold(f"after answer {number}, {answer.name}, the real run is in another state than the counts")
        yield ConcreteAnswer(answer, prompt, moves)


def _moves_of(world: World, answer: Answer, crash: CrashFrom) -> tuple[int | None, tuple[Any, ...]]:
    """The prompt of an answer, the first dispatched one that may give it, and the moves of a scenario that do."""
    if answer.group_class is None:
        if answer.name == "save":
            return None, ("checkpoint",)
        own_snapshot = answer.name == "crash" and crash is CrashFrom.OWN_SNAPSHOT
        return None, ("checkpoint", "crash") if own_snapshot else (answer.name,)
    roster = world.core.book.roster
    last = world.config.async_rl.rollout_failure.max_infra_attempts_per_prompt - 1
    running = list(roster.running.get(answer.group_class, {}).values())
    groups: Iterable[Group]
    match answer.name:
        case "end_backoff":
            groups = roster.backing_off.values()
        case "claim_failed":
            groups = roster.chunk.values()
        case "late":
            groups = [*roster.waiting.values(), *roster.backing_off.values()]
        case "drop":
            groups = [group for group in running if group.infra_failures == last]
        case "back_off":
            groups = [group for group in running if group.infra_failures < last]
        case _:
            groups = running
    prompt = _first(groups, answer.group_class).prompt
    if answer.name == "commit":
        _require_label(world, answer, prompt)
    return prompt, _moves_about(world, answer.name, prompt)


def _moves_about(world: World, name: str, prompt: int) -> tuple[Any, ...]:
    fails = {"fail": {"prompt": prompt, "kind": "data" if name in ("retry", "skip") else "infra"}}
    match name:
        case "end_backoff":
            due_s = next(due for due, attempt in world.backoffs if attempt.prompt == prompt)
            return ({"tick": due_s - world.now_s},)
        case "back_off":
            return {"tick": 1.0}, fails  # backoffs must not end together: a tick ends all that are due
        case "retry" | "skip" | "drop":
            return (fails,)
    return ({name: [prompt]},)


def _require_label(world: World, answer: Answer, prompt: int) -> None:
    """In a scenario all groups have one record, and so one label."""
    sampler = labelling(world.setup.sampler)
    record = GroupRecord(prompt, completion_tokens=0, reward_mean=0.5, reward_std=0.5)
    label = 0 if sampler is None else sampler.label(record)
    if label != answer.label:
        raise Untold(f"a group of label {answer.label} commits, and in a scenario all have label {label}")


def _first(groups: Iterable[Group], group_class: GroupClass) -> Group:
    for group in groups:
        if group.group_class == group_class:
            return group
    raise Untold(f"no group of {group_class} can give the answer with one budget of attempts for all prompts")
