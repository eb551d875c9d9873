"""An explanation in print: the verdict, the step as counts per class, the chain, the proof, and what to do.

All content of a trace is shown as text: none of it is markup, and control characters are escaped.
"""

import time
from collections.abc import Iterator, Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fsm.explain import class_name
from fsm.machines.source import SourceState
from fsm.state import NONE, Counts, GroupClass, State
from fsm.values import pages
from runtime.explain.explanation import Explanation, left, resumes
from runtime.explain.finding import RunVerdict, seconds
from runtime.explain.situation import Situation
from runtime.trace.show import printable

CLASSES_SHOWN = 20
FAILURES_SHOWN = 12
WIDEST = 4_000
"""Longest line shown, in characters."""
_COLOURS: Mapping[RunVerdict, str] = {
    **dict.fromkeys((RunVerdict.HEALTHY, RunVerdict.COMPLETED), "bold green"),
    **dict.fromkeys((RunVerdict.STARVED, RunVerdict.INTERRUPTED), "bold yellow"),
    RunVerdict.SLOW: "bold cyan",
}
"""All others are red."""
COLUMNS = ("queued", "running", "waiting", "backing off", "ready", "in training", "trained", "slots")
ALWAYS_SHOWN = frozenset({"running", "ready", "slots"})


def printed(explanation: Explanation) -> RenderableType:
    """The whole explanation, for a terminal or a file."""
    situation = explanation.situation
    moment = situation.moment
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment.unix_s))
    title = Text()
    title.append(explanation.verdict.value, _COLOURS.get(explanation.verdict, "bold red"))
    if explanation.before is not None:
        title.append(f", {explanation.before.value} before", _COLOURS.get(explanation.before, "bold red"))
    title.append(
        f"   step {situation.step}: {situation.state.step.selected} selected + {situation.charged} charged of "
        f"{situation.limits.size}"
    )
    restart = "" if (said := situation.restart) is None else f", {said}"
    when = f"after record {moment.seq}, {clock}, {moment.monotonic_s:.1f} s in{restart}"
    parts: list[RenderableType] = [title, Text(when, "dim")]
    parts += [Text(note) for note in _notes(situation)]
    parts += [Text(), counts_table(situation), places_line(situation)]
    if explanation.waits_for != (explanation.root,):
        parts += [Text(), Text("what waits for what", "bold")]
        parts += [_line(f"{number}.", line) for number, line in enumerate(explanation.waits_for, 1)]
    if explanation.proof:
        parts += [Text(), Text("proof", "bold"), *(_line("·", line) for line in explanation.proof)]
    if explanation.failures:
        lines = [str(found) for found in explanation.failures]
        more = [f"and {len(lines) - FAILURES_SHOWN} more kinds"] if len(lines) > FAILURES_SHOWN else []
        shown = (_line("·", line) for line in lines[:FAILURES_SHOWN] + more)
        parts += [Text(), Text("without a verdict", "bold"), *shown]
    parts += [Text(), Text("root", "bold"), _line("→", explanation.root)]
    parts += [Text(), Text("what to change", "bold"), _line("→", explanation.advice)]
    return Group(*parts)


def _notes(situation: Situation) -> Iterator[str]:
    moment = situation.moment
    silent_s = situation.now_s - moment.monotonic_s
    if silent_s >= 1:
        yield (
            f"nothing was recorded since, for {seconds(silent_s)}: the process waits, was killed, or could not write "
            "its trace (its log then says so)"
        )
    if situation.ended is None and situation.at_the_end:
        yield f"the process ended here in good order: the run was interrupted, or failed; {resumes(situation)}"
    model = left(situation)
    if model is not None:
        yield model
    if moment.diverged_seq is not None:
        yield (
            f"the state is today's: from record {moment.diverged_seq} on today's core differs from the recorded one "
            f"(evenstep replay shows it)"
        )


def _line(mark: str, line: str) -> RenderableType:
    return Text(f"  {mark} {printable(line, widest=WIDEST)}")


def counts_table(situation: Situation) -> Table:
    """Groups by class and place, without empty places. A slot is a place in flight or ready."""
    rows = _rows(situation.state)
    rest = rows[CLASSES_SHOWN:]
    rows = rows[:CLASSES_SHOWN] + ([(f"{len(rest)} more", _sum(rest))] if rest else [])
    in_all = _sum(rows)
    shown = [place for place, count in zip(COLUMNS, in_all, strict=True) if count or place in ALWAYS_SHOWN]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("  class", no_wrap=True)
    for place in shown:
        table.add_column(place, justify="right", no_wrap=True)
    for name, counts in (*rows, ("in all", in_all)):
        named = zip(COLUMNS, counts, strict=True)
        cells = [Text(str(count) if count else "·") for place, count in named if place in shown]
        table.add_row(Text(f"  {name}"), *cells, style="bold" if counts is in_all else "")
    return table


_Row = tuple[str, list[int]]
"""A class, and how many of its groups are in each place."""


def _sum(rows: list[_Row]) -> list[int]:
    return [sum(counts[column] for _, counts in rows) for column in range(len(COLUMNS))]


def _rows(state: State) -> list[_Row]:
    queue = GroupClass(state.queue.target_step, state.queue.bucket)
    queued: Counts = pages.of([(queue, state.queue.groups)]) if state.queue.groups else ()
    places = (queued, state.running, state.waiting, state.backing_off, state.ready, state.chunk, state.accumulated)
    classes = sorted({group_class for counts in places for group_class, _ in pages.items(counts)})
    by_class = {known: [pages.get(counts, known, 0) for counts in places] for known in classes}
    return [(_name(known), [*counts, sum(counts[1:5])]) for known, counts in by_class.items()]


def _name(group_class: GroupClass) -> str:
    if group_class.start_weight == NONE and group_class != GroupClass():
        return f"{class_name(group_class)}, not started"
    return class_name(group_class) if group_class != GroupClass() else "not started"


def places_line(situation: Situation) -> Text:
    """Dispatch index, gate, in flight, buffer, pool and data."""
    state, limits = situation.state, situation.limits
    sheet, gate = state.sheet, state.gate
    since = seconds(situation.age_s(situation.vitals.gate_since_s))
    pool = f"pool {state.pool.spares} spares (reserve {limits.reserve})" if limits.uses_pool else "no pool"
    data = "data left" if state.source.status is SourceState.PRODUCING else "data used up"
    return Text(
        f"  dispatch index {gate.dispatch_index}, gate {gate.status.name.lower()} for {since}, in flight "
        f"{sheet.in_flight} of {limits.max_inflight}, buffer {sheet.in_flight + sheet.ready} of {limits.max_buffered}, "
        f"{pool}, {data}"
    )
