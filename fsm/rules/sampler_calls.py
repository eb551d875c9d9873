"""Calls of the sampler's methods; `fsm.rules.losses` has the call for a charge.

What a custom sampler returns is checked for its type and against the state. What it raises becomes a SamplerError that
names the sampler and the method, SystemExit included, which would end the process; KeyboardInterrupt passes, since it
is the user's. Built-in samplers are not checked.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from fsm.errors import SamplerError
from fsm.events import GroupRecord
from fsm.rules.changes import Picks
from fsm.rules.laws import Laws
from fsm.samplers.protocol import Admission, LabellingSampler, optional
from fsm.state import GroupClass, State, View
from fsm.values import pages

T = TypeVar("T")


def call(laws: Laws, method: str, ask: Callable[[], T], about: str = "") -> T:
    """What `ask` returns; SamplerError where it raises."""
    try:
        return ask()
    except KeyboardInterrupt:
        raise
    except BaseException as cause:
        raise SamplerError(
            f"sampler {laws.sampler_name}: {method} raised {type(cause).__name__}: {cause}{about}. The run cannot "
            f"go on without its decision; correct the sampler"
        ) from cause


def refuse(laws: Laws, method: str, said: str, allowed: str) -> SamplerError:
    """The error about a return value that the rules forbid."""
    return SamplerError(f"sampler {laws.sampler_name}: {method} {said}; allowed: {allowed}")


def _is_step(value: object) -> bool:
    return value is None or type(value) is int


def ask_admit(state: State, laws: Laws) -> Admission | None:
    """The sampler's admission for the next batch (A1)."""
    view = View(state, laws.limits)
    if not laws.is_custom:
        return laws.sampler.admit(view)
    admission = call(laws, "admit", lambda: laws.sampler.admit(view))
    if admission is None:
        return None
    if not isinstance(admission, Admission) or not (_is_step(admission.target_step) and _is_step(admission.bucket)):
        raise refuse(laws, "admit", f"returned {admission!r}", "an Admission of whole numbers or None, or None")
    step = admission.target_step
    if step is not None and step < state.trainer.version:
        raise refuse(laws, "admit", f"stamped a batch for step {step}, which is closed", f"{state.trainer.version} on")
    return admission


def ask_select(state: State, laws: Laws, min_groups: int, max_groups: int) -> Picks:
    """The sampler's selection, () for not yet; checked against what is ready (S1, S2)."""
    view = View(state, laws.limits)
    if not laws.is_custom:
        return tuple(laws.sampler.select(view, min_groups, max_groups))
    picks = call(laws, "select", lambda: tuple(laws.sampler.select(view, min_groups, max_groups)))
    taken = 0
    seen: set[GroupClass] = set()
    for pick in picks:
        group_class, groups = _pick(laws, pick)
        ready = pages.get(state.ready, group_class, 0)
        if not 1 <= groups <= ready or group_class in seen:
            twice = ", named twice" if group_class in seen else ""
            raise refuse(laws, "select", f"took {groups} groups of {group_class}{twice}", f"1 to {ready}, once")
        if optional(group_class.target_step) not in (None, state.trainer.version):
            said = f"took groups stamped for step {group_class.target_step}"
            raise refuse(laws, "select", said, f"unstamped ones, and those for step {state.trainer.version}")
        seen.add(group_class)
        taken += groups
    if picks and not min_groups <= taken <= max_groups:
        raise refuse(laws, "select", f"took {taken} groups", f"{min_groups} to {max_groups}, or none for not yet")
    return picks


def _pick(laws: Laws, pick: object) -> tuple[GroupClass, int]:
    if isinstance(pick, tuple) and len(pick) == 2 and isinstance(pick[0], GroupClass) and type(pick[1]) is int:
        return pick[0], pick[1]
    raise refuse(laws, "select", f"took {pick!r}", "pairs (GroupClass, whole number), as the view's ready_classes has")


def ask_evict(state: State, laws: Laws) -> Picks:
    """The ready classes that the sampler evicts, with their counts (E1)."""
    view = View(state, laws.limits)
    if not laws.is_custom:
        below = laws.sampler.evict(view)
        return tuple((group_class, pages.get(state.ready, group_class, 0)) for group_class in below) if below else ()
    classes = call(laws, "evict", lambda: tuple(laws.sampler.evict(view)))
    picks: list[tuple[GroupClass, int]] = []
    for group_class in classes:
        groups = pages.get(state.ready, group_class, 0) if isinstance(group_class, GroupClass) else 0
        if groups == 0 or any(group_class == other for other, _ in picks):
            raise refuse(laws, "evict", f"named {group_class!r}", "classes that are ready, each once")
        picks.append((group_class, groups))
    return tuple(picks)


def ask_abort(state: State, laws: Laws) -> Picks:
    """The running classes that the sampler aborts when the version moves, with their counts (E1)."""
    if laws.keeps_stale:
        return ()
    view = View(state, laws.limits)
    picks: list[tuple[GroupClass, int]] = []
    for group_class, groups in pages.items(state.running):
        ask = partial(laws.sampler.should_abort_inflight, view, group_class)
        aborts: object = call(laws, "should_abort_inflight", ask)
        if not isinstance(aborts, bool):
            raise refuse(laws, "should_abort_inflight", f"returned {aborts!r}", "True or False")
        if aborts:
            picks.append((group_class, groups))
    return tuple(picks)


def ask_label(laws: Laws, sampler: LabellingSampler, record: GroupRecord) -> int:
    """The label of a group that is ready."""
    label, labels = call(laws, "label", lambda: (sampler.label(record), sampler.labels), f" for {record}")
    if type(label) is not int or not 0 <= label < labels:
        raise refuse(laws, "label", f"gave {label!r} for {record}", f"0 to {labels - 1} (labels is {labels})")
    return label
