"""What a report is made of: columns that say what the core's own state and books say."""

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm.events import FailureKind
from fsm.machines.prompt_group import GroupState
from fsm.snapshot import restore, snapshot
from runtime.report.attempts import RETRIED, Attempts, lanes_of
from runtime.report.collect import Collected, collect, rows_of
from runtime.report.columns import LONGEST, MOST, NOT_YET, Columns, Texts
from runtime.report.counters import Counters
from runtime.report.phases import CAUSES, ENDINGS, WaitCause
from runtime.report.steps import STALENESS_SHOWN
from runtime.trace.files import TraceUnreadable, make_header
from runtime.trace.reader import open_trace
from runtime.trace.records import SnapshotRecord, TransitionRecord
from runtime.trace.writer import Trace
from tests.runtime.bookkeeping import config_of as small_config
from tests.runtime.bookkeeping import random_moves, world_of
from tests.runtime.explain.helpers import Recorded, config_of, recording
from tests.runtime.report.helpers import collected, wander, wandered
from tests.runtime.trace.helpers import SAMPLERS, open_for, recorded_run, traced_world

PLACES = [state for state in GroupState if state is not GroupState.DATA]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_balance_sheet_is_that_of_the_core(tmp_path: Path, sampler: str, seed: int) -> None:
    """X4"""
    core = wandered(tmp_path / "trace.jsonl", sampler, seed=seed, moves=60 * seed)
    sheet = core.state.sheet._asdict()
    assert collected(tmp_path / "trace.jsonl").counters.sheet() == sheet


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_counters_are_those_of_every_snapshot(tmp_path: Path, sampler: str) -> None:
    wandered(tmp_path / "trace.jsonl", sampler, seed=4, num_prompts=60)
    counters, snapshots = Counters(), 0
    counters.begin(None)
    for record in open_trace(tmp_path / "trace.jsonl").records():
        if isinstance(record, TransitionRecord):
            counters.transition(0, record.transition.changes)
        elif isinstance(record, SnapshotRecord):
            state = record.snapshot["state"]
            assert list(counters.sheet().values()) == state["tally"]
            assert [int(not counters.gate_open), counters.dispatch_index] == state["gate"]
            snapshots += 1
    assert snapshots > 5


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("moves", [40, 10_000])
def test_groups_are_where_the_core_has_them(tmp_path: Path, sampler: str, moves: int) -> None:
    core = wandered(tmp_path / "trace.jsonl", sampler, seed=5, moves=moves)
    told = collected(tmp_path / "trace.jsonl")
    states = Counter(told.attempts.rows["state"])
    roster, sheet = core.book.roster, core.state.sheet
    waiting = len(roster.waiting) + len(roster.backing_off)
    assert states[GroupState.IN_FLIGHT] == sheet.in_flight - waiting
    for state in PLACES[3:]:
        assert states[state] == sheet[state], state.name
    failed = states[RETRIED] + states[GroupState.DROPPED]
    assert failed == sum(1 for row in rows_of(told.attempts.rows) if row["error"] != NOT_YET)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_steps_are_made_up_as_the_core_s_book_says(tmp_path: Path, sampler: str) -> None:
    core = wandered(tmp_path / "trace.jsonl", sampler, seed=6)
    steps = list(rows_of(collected(tmp_path / "trace.jsonl").steps))
    closed = [row for row in steps if row["closed"] != NOT_YET]
    named = [(row["step"], row["selected"], row["charged"], row["short"]) for row in closed]
    assert named == [tuple(closed) for closed in core.book.closed]
    for row in closed:
        assert sum(row[f"staleness_{versions}"] for versions in range(STALENESS_SHOWN)) == row["selected"]
        assert row["begun"] <= row["finishing"] <= row["closed"] <= row["synced"]
    for name in ("filtered", "replaced", "dropped", "evicted", "aborted"):
        assert sum(row[name] for row in steps) == core.state.sheet._asdict()[name]


def test_losses_of_a_step_that_is_open_count_under_it(tmp_path: Path) -> None:
    with recording(tmp_path / "trace.jsonl", config_of("ready_first", 3, grpo={"use_dynamic_sampling": True})) as run:
        run.filter(0)
        run.commit(1)
    told = collected(tmp_path / "trace.jsonl")
    [step] = list(rows_of(told.steps))
    assert (step["step"], step["closed"], step["finished"], step["filtered"], step["charged"]) == (0, NOT_YET, 2, 1, 1)
    assert step["zero_variance"] == 1


def test_the_trainer_s_time_is_told_without_a_gap(tmp_path: Path) -> None:
    wandered(tmp_path / "trace.jsonl", "windowed", seed=7)
    told = collected(tmp_path / "trace.jsonl")
    phases = list(rows_of(told.phases.rows))
    assert all(before["ended"] == after["begun"] for before, after in itertools.pairwise(phases))
    waited = sum(row["ended"] - row["begun"] for row in phases if row["phase"] == 0)
    assert waited == sum(row["ended"] - row["begun"] for row in rows_of(told.phases.waits))


def drive_waits(run: Recorded) -> None:
    run.later(1.0)
    run.commit(0)
    run.later(2.0)
    run.world.fail(1, FailureKind.INFRA, "gone")  # backs off for 4 s
    run.later(4.0)
    run.later(0.5)
    run.commit(1)


def test_a_wait_is_told_with_its_causes_and_with_what_ended_it(tmp_path: Path) -> None:
    config = config_of("in_order", 2, failure={"backoff_base_s": 4.0}, async_rl={"max_inflight_prompts": 2})
    with recording(tmp_path / "trace.jsonl", config, 2) as run:
        drive_waits(run)
    told = collected(tmp_path / "trace.jsonl")
    [wait] = list(rows_of(told.phases.waits))
    assert (wait["begun"], wait["ended"], wait["prompt"]) == (0, 7500, 1)
    assert ENDINGS[int(wait["ended_by"])] == "a group finished"
    assert {name: wait[name] for name in ("rollouts", "retries", "gate")} == {
        "rollouts": 3500,
        "retries": 4000,
        "gate": 0,
    }


def test_a_wait_that_goes_on_and_a_closed_gate_are_told(tmp_path: Path) -> None:
    target = "tests.runtime.explain.helpers:WaitsForTheNextVersion"
    config = config_of({"name": "custom", "target": target, "max_lookahead_versions": 1}, 2)
    with recording(tmp_path / "trace.jsonl", config) as run:
        run.later(9.0)
        run.trace.snapshot()
    told = collected(tmp_path / "trace.jsonl")
    [wait] = list(rows_of(told.phases.waits))
    assert wait["gate"] == 9000
    assert ENDINGS[int(wait["ended_by"])] == "it goes on"
    assert len(CAUSES) == len(WaitCause)


def test_a_dump_without_its_beginning_is_put_right_by_its_snapshot(tmp_path: Path) -> None:
    with open_for(tmp_path / "trace.jsonl", ring_records=25, num_prompts=80, snapshot_every=1_000) as trace:
        world = traced_world(trace, "in_order", 80)
        random_moves(world, 3, 150)
        ring = trace.dump()
    told = collected(ring)
    assert told.first_seq > 0
    assert told.counters.sheet() == world.core.state.sheet._asdict()
    assert told.counters.dispatch_index == world.core.state.gate.dispatch_index
    running = {row["dispatch"] for row in rows_of(told.attempts.rows) if row["state"] == GroupState.IN_FLIGHT}
    roster = world.core.book.roster
    assert running == {group.dispatch for group in roster.in_flight.values() if roster.runs(group)}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("ring_records", [25, 40, 90])
def test_counters_of_a_dump_are_those_of_the_whole_trace(tmp_path: Path, sampler: str, ring_records: int) -> None:
    path = tmp_path / "trace.jsonl"
    with recording(path, small_config(sampler), 60, snapshot_every=10_000, ring_records=ring_records) as run:
        wander(run, 5, 70)
        ring = collected(run.trace.dump())
    whole = {row["t"]: row for row in rows_of(collected(path).counters.rows)}
    rows = [row for row in rows_of(ring.counters.rows) if row["t"] in whole]
    assert ring.first_seq > 0
    assert len(rows) >= 2
    assert rows == [whole[row["t"]] for row in rows]


def test_a_part_without_beginning_and_snapshot_says_that_its_counts_are_relative(tmp_path: Path) -> None:
    with recording(tmp_path / "trace.jsonl", small_config(), 60, max_bytes=6_000) as run:
        wander(run, 1, 100)
    assert collected(tmp_path / "trace.jsonl").counters.anchored
    parts = [collected(part) for part in (tmp_path / "trace.jsonl.1.gz", tmp_path / "trace.jsonl.2.gz")]
    snapshots = [any(isinstance(record, SnapshotRecord) for record in part.trace.records()) for part in parts]
    assert [part.counters.anchored for part in parts] == [True, snapshots[1]]
    assert not snapshots[1]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_resumed_run_begins_with_what_it_was_restored_from(tmp_path: Path, sampler: str) -> None:
    """C2"""
    world = world_of(small_config(sampler), 60)
    random_moves(world, 2, 45)
    saved = json.loads(json.dumps(snapshot(world.core)))
    header = make_header(world.config, num_prompts=60, seeds={}, snapshot=saved, incarnation=1)
    with Trace(tmp_path / "trace-1.jsonl", header) as trace:
        cores = []
        core = restore(world.setup, saved, observer=lambda transition: trace.observe(transition, cores[0]))
        cores.append(core)
        world.core, world._observer = core, None
        world._open()
        random_moves(world, 3, 10_000)
    told = collected(tmp_path / "trace-1.jsonl")
    assert told.counters.sheet() == core.state.sheet._asdict()
    closed = [row["step"] for row in rows_of(told.steps) if row["closed"] != NOT_YET]
    assert closed == [step.step for step in core.book.closed[len(saved["closed"]) :]]
    states = Counter(told.attempts.rows["state"])
    trained_before = saved["state"]["tally"][6]
    assert states[GroupState.TRAINED] == core.state.sheet.trained - trained_before


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    wandered(tmp_path / "trace.jsonl", seed=8, moves=50)
    whole = (tmp_path / "trace.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    (tmp_path / "trace.jsonl").write_bytes(b"".join(lines[:60]) + lines[60][:20])
    told = collected(tmp_path / "trace.jsonl")
    assert told.records == 59
    assert told.trace.torn


def test_a_rotated_trace_tells_the_same_as_one_of_one_file(tmp_path: Path) -> None:
    told: list[Collected] = []
    for folder, options in (("one", {}), ("many", {"max_bytes": 4096})):
        (tmp_path / folder).mkdir()
        with recording(tmp_path / folder / "trace.jsonl", config_of("in_order", 4), **options) as run:
            wander(run, 1, 120)
        told.append(collected(tmp_path / folder / "trace.jsonl"))
    assert len(told[1].trace.parts) > 1
    for name in ("prompt", "begun", "ended", "state", "step", "worker"):
        assert told[0].attempts.rows[name] == told[1].attempts.rows[name]


def test_a_trace_of_a_header_alone_is_refused(tmp_path: Path) -> None:
    wandered(tmp_path / "trace.jsonl", moves=1)
    header = (tmp_path / "trace.jsonl").read_bytes().splitlines(keepends=True)[0]
    (tmp_path / "trace.jsonl").write_bytes(header)
    with pytest.raises(TraceUnreadable, match="has no record"):
        collected(tmp_path / "trace.jsonl")


def test_a_record_that_no_run_writes_is_refused_by_number(tmp_path: Path) -> None:
    recorded_run(tmp_path / "trace.jsonl", moves=5)
    with (tmp_path / "trace.jsonl").open("ab") as file:
        file.write(b'{"q":9999,"t":5.0,"f":[],"e":["GF",["x","y"],false,null],"m":[["gc",[0],[0]]]}\n')
    with pytest.raises(TraceUnreadable, match="record 9999 does not come from a run"):
        collect(open_trace(tmp_path / "trace.jsonl"))


def test_a_header_that_no_run_writes_is_refused(tmp_path: Path) -> None:
    recorded_run(tmp_path / "trace.jsonl", moves=5)
    text = (tmp_path / "trace.jsonl").read_text(encoding="ascii")
    (tmp_path / "trace.jsonl").write_text(text.replace('"loss_fn"', '"lost_fn"', 1), encoding="ascii")
    with pytest.raises(TraceUnreadable, match="the header's config lacks one of grpo, async_rl, loss_fn"):
        collect(open_trace(tmp_path / "trace.jsonl"))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 20)), max_size=40))
@settings(max_examples=200, deadline=None)
def test_attempts_of_one_lane_never_overlap_and_no_lane_is_one_too_many(spans: list[tuple[int, int, int]]) -> None:
    attempts = Attempts(Texts()).rows
    for prompt, (worker, begun, took) in enumerate(spans):
        row = dict.fromkeys(attempts.columns, 0) | {"prompt": prompt, "worker": worker, "begun": begun}
        attempts.append(*(row | {"ended": begun + took}).values())
    lanes, counts = lanes_of(attempts, 100)
    for worker, count in counts.items():
        of_worker = [row for row in lanes if attempts["worker"][row] == worker]
        ends = {row: max(attempts["ended"][row], attempts["begun"][row] + 1) for row in of_worker}
        for lane in range(count):
            rows = sorted((attempts["begun"][row], ends[row]) for row in of_worker if lanes[row] == lane)
            assert rows
            assert all(before[1] <= after[0] for before, after in itertools.pairwise(rows))
        at_once = [
            sum(attempts["begun"][row] <= when < ends[row] for row in of_worker)
            for when in {attempts["begun"][row] for row in of_worker}
        ]
        assert count == max(at_once)


def test_texts_are_kept_once_cut_and_bounded() -> None:
    texts = Texts()
    assert texts.number("a\x1b") == texts.number("a\x1b") == 0
    assert texts.kept == ["a\\x1b"]
    long = texts.number("x" * 1_000_000)
    assert len(texts.kept[long]) < LONGEST + 40
    for number in range(MOST + 10):
        texts.number(str(number))
    assert len(texts.kept) == MOST + 1
    assert texts.number("another one") == MOST


def test_columns_refuse_what_they_cannot_hold() -> None:
    columns = Columns({"t": "I"})
    with pytest.raises(OverflowError):
        columns.append(-1)
