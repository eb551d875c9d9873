"""The trace has everything that the core was told and did, at little cost, and survives its process."""

import gzip
import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any, get_args

import pytest

from fsm import effects, events
from fsm.core import AppliedEvent
from fsm.effects import ClearRows, SelectedGroup, StartRollout, Stopped, TrainChunk
from fsm.errors import BelowFloor
from fsm.events import Attempt, Begin, FailureKind, GroupFailed, GroupFinished, GroupRecord
from fsm.rules import changes
from fsm.rules.changes import GroupCommitted, GroupsEvicted, RetryWaits, RunStopped
from fsm.state import GroupClass
from runtime.trace import notes
from runtime.trace.files import TraceUnreadable, compress, find_trace, make_header, parts_of, trace_path
from runtime.trace.kinds import BY_NAME, CODES, read_value, write_value
from runtime.trace.reader import open_trace
from runtime.trace.records import NoteRecord, SnapshotRecord, TransitionRecord, encode
from runtime.trace.replay import replay
from runtime.trace.vitals import from_json
from runtime.trace.writer import Trace, TraceFailed
from tests.runtime.bookkeeping import config_of, random_moves
from tests.runtime.trace.helpers import SAMPLERS, open_for, recorded_run, traced_world, write_until_killed

A = Attempt(5, 9, 1)
C = GroupClass(3, -1, 2, 1, 0)


def transitions_of(path: Path) -> list[AppliedEvent]:
    return [record.transition for record in open_trace(path).records() if isinstance(record, TransitionRecord)]


# What is written


def test_the_header_says_under_what_the_run_was_made_and_what_the_codes_mean(tmp_path: Path) -> None:
    recorded_run(tmp_path / "trace.jsonl", moves=3)
    header = open_trace(tmp_path).header
    assert header["format"] == "evenstep trace 1"
    assert header["num_prompts"] == 24
    assert header["seeds"] == {"data": 1}
    assert header["snapshot"] is None
    assert header["incarnation"] == 0
    assert header["config"]["grpo"]["num_prompts_per_step"] == 2
    assert {"python", "transitions", "pydantic"} <= header["packages"].keys()
    assert abs(header["started_unix_s"] - time.time()) < 60
    assert header["kinds"]["GF"] == ["GroupFinished", ["attempt", "zero_variance", "record"]]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_transition_comes_back_as_it_was_with_its_times(tmp_path: Path, sampler: str) -> None:
    seen: list[AppliedEvent] = []
    with open_for(tmp_path / "trace.jsonl", sampler) as trace:
        observe = trace.observe
        trace.observe = lambda transition, core: (seen.append(transition), observe(transition, core))[1]  # type: ignore[method-assign]
        random_moves(traced_world(trace, sampler, 24), 1, 60)
    records = list(open_trace(tmp_path).records())
    assert [record.seq for record in records] == list(range(len(records)))
    assert [str(transition) for transition in transitions_of(tmp_path)] == [str(transition) for transition in seen]
    times = [record.monotonic_s for record in records]
    assert times == sorted(times)
    assert all(abs(record.unix_s - time.time()) < 60 for record in records)


def test_every_kind_has_a_code_of_its_own() -> None:
    kinds = {*get_args(events.Event), *get_args(changes.Change), *get_args(effects.Effect), *get_args(notes.Note)}
    assert CODES.keys() == kinds
    assert len(set(CODES.values())) == len(kinds) == len(BY_NAME)


@pytest.mark.parametrize(
    "value",
    [
        Begin(),
        GroupFinished(A, True),
        GroupFinished(A._replace(incarnation=0), False, GroupRecord(5, 17, 1 / 3, 0.1)),
        GroupFailed(A, FailureKind.DATA, 'line 1\n"two" \u2028 \udc80'),
        events.StallTimeout(600.5),
        events.DeadEndReached(),
        RetryWaits(C, GroupClass(), FailureKind.INFRA, True),
        GroupCommitted(C, GroupClass(label=2)),
        GroupsEvicted(((C, 3), (GroupClass(), 1))),
        TrainChunk(0, 1, (SelectedGroup(4, 0),)),
        ClearRows((1, 2), "trained"),
        StartRollout(A, 2, None, 1),
        notes.AttemptsPlaced("generation-0", (A, Attempt(1, 2))),
        notes.GroupReceived(5, "w", 16, 16, 9, 0, 3, 1.5, 0.01),
        notes.WorkerDied("w", "\x1b[31mgone"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    back = read_value(json.loads(encode(write_value(value))))
    assert back == value
    assert type(back) is type(value)


def test_a_validation_of_an_older_trace_is_of_the_one_set_that_there_was() -> None:
    assert read_value(["VD", 50, 0.75, 0.5, 256]) == notes.Validated(50, 0.75, 0.5, 256, "validation")
    assert read_value(write_value(notes.Validated(50, 0.75, 0.5, 256, "maths"))).of_set == "maths"


def test_an_error_comes_back_with_its_type_and_its_message() -> None:
    for kind in (RunStopped, Stopped):
        back = read_value(json.loads(encode(write_value(kind(BelowFloor("too few"))))))
        assert type(back.error) is BelowFloor
        assert str(back.error) == "too few"


def test_a_finished_group_is_all_right_all_wrong_or_mixed() -> None:
    received = notes.GroupReceived(5, "w", 4, 4, 9, 0, 3, 1.5, 0.01)
    assert received.verdict == "all_right"
    assert received._replace(correct=0).verdict == "all_wrong"
    assert received._replace(correct=1).verdict == "mixed"


def test_snapshots_come_every_so_many_records_and_have_each_closed_step_once(tmp_path: Path) -> None:
    world = recorded_run(tmp_path / "trace.jsonl", "ready_first", num_prompts=60)
    snapshots = [record for record in open_trace(tmp_path).records() if isinstance(record, SnapshotRecord)]
    assert len(snapshots) > 5
    closed = [step for record in snapshots for step in record.snapshot["closed"]]
    assert closed == [list(step) for step in world.core.book.closed]
    assert [record.closed_before for record in snapshots][-1] == len(closed) - len(snapshots[-1].snapshot["closed"])


def test_vitals_know_what_runs_since_when_and_on_which_worker(tmp_path: Path) -> None:
    with open_for(tmp_path / "trace.jsonl") as trace:
        world = traced_world(trace, "in_order", 24)
        running = list(world.started_s)
        trace.note(notes.WorkerStarted("a"))
        trace.note(notes.AttemptsPlaced("a", tuple(running)))
        trace.note(notes.CallBegan("publish", 3))
        world.commit(running[0].prompt)
        trace.note(notes.GroupReceived(running[0].prompt, "a", 4, 4, 9, 0, 0, 1.5, 0.01))
        trace.note(notes.WorkerDied("a", "killed"))
    [*_, last, _closed] = open_trace(tmp_path).records()
    assert isinstance(last, SnapshotRecord)
    vitals = from_json(last.vitals)
    assert [rollout.attempt for rollout in vitals.rollouts.values()][: len(running) - 1] == running[1:]
    assert {rollout.worker for rollout in vitals.rollouts.values()} <= {"a", None}
    assert vitals.calls["publish"][0] == 3
    assert vitals.workers["a"].deaths == 1
    assert not vitals.workers["a"].alive
    assert [finished.verdict for finished in vitals.recent] == ["all_right"]
    assert vitals.as_json() == last.vitals


def test_a_trace_is_never_overwritten(tmp_path: Path) -> None:
    recorded_run(tmp_path / "trace.jsonl", moves=3)
    before = (tmp_path / "trace.jsonl").read_bytes()
    with pytest.raises(FileExistsError):
        open_for(tmp_path / "trace.jsonl")
    assert (tmp_path / "trace.jsonl").read_bytes() == before


def test_each_process_of_a_run_has_a_trace_of_its_own_and_the_newest_is_the_runs(tmp_path: Path) -> None:
    assert [trace_path(tmp_path, number).name for number in (0, 1)] == ["trace.jsonl", "trace-1.jsonl"]
    for name in ("trace.jsonl", "trace-2.jsonl", "trace-10.jsonl", "trace.ring-11.jsonl"):
        (tmp_path / name).touch()
    assert find_trace(tmp_path).name == "trace-10.jsonl"
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceUnreadable, match="has no trace"):
        find_trace(tmp_path / "empty")


# Rotation


@pytest.mark.parametrize("compress", [True, False])
def test_rotated_parts_are_read_in_order_as_one(tmp_path: Path, compress: bool) -> None:
    world = recorded_run(tmp_path / "trace.jsonl", "ready_first", num_prompts=80, max_bytes=12_000, compress=compress)
    parts = parts_of(tmp_path / "trace.jsonl")
    assert len(parts) > 3
    assert {part.suffix for part in parts[:-1]} == {".gz" if compress else f".{n}" for n in range(1, 2)} or not compress
    assert all(json.loads(lines_of(part)[0])["part"] == number for number, part in enumerate(parts))
    records = list(open_trace(tmp_path).records())
    assert [record.seq for record in records] == list(range(len(records)))
    result = replay(tmp_path)
    assert result.difference is None
    assert result.core.book.closed == world.core.book.closed


def lines_of(part: Path) -> list[str]:
    content = gzip.decompress(part.read_bytes()) if part.suffix == ".gz" else part.read_bytes()
    return content.decode().splitlines()


def test_a_process_that_dies_between_two_parts_leaves_those_before_readable(tmp_path: Path) -> None:
    recorded_run(tmp_path / "trace.jsonl", "ready_first", num_prompts=80, max_bytes=12_000, compress=False)
    (tmp_path / "trace.jsonl").unlink()
    records = list(open_trace(tmp_path).records())
    assert [record.seq for record in records] == list(range(len(records)))
    assert records == list(open_trace(tmp_path / "trace.jsonl").records())
    assert replay(tmp_path).difference is None


def test_a_part_whose_compression_was_interrupted_is_read_once(tmp_path: Path) -> None:
    recorded_run(tmp_path / "trace.jsonl", "ready_first", num_prompts=80, max_bytes=12_000, compress=False)
    before = [record.seq for record in open_trace(tmp_path).records()]
    part = tmp_path / "trace.jsonl.1"
    content = part.read_bytes()
    compress(part)
    part.write_bytes(content)
    assert [record.seq for record in open_trace(tmp_path).records()] == before


# The writer


def test_records_are_in_the_file_soon_without_a_flush(tmp_path: Path) -> None:
    trace = open_for(tmp_path / "trace.jsonl", flush_interval_s=0.02)
    traced_world(trace, "in_order", 24)
    until = time.monotonic() + 10
    while not transitions_of(tmp_path) and time.monotonic() < until:
        time.sleep(0.01)
    assert len(transitions_of(tmp_path)) == 1
    trace.close()
    trace.close()
    assert isinstance(list(open_trace(tmp_path).records())[-1], NoteRecord)


def test_a_trace_that_cannot_be_written_says_so_at_the_next_event_and_at_close(tmp_path: Path) -> None:
    trace = open_for(tmp_path / "trace.jsonl", flush_interval_s=0.01)
    world = traced_world(trace, "in_order", 24)
    trace.flush()
    assert trace._file is not None
    trace._file.close()
    trace.note(notes.AnswerWasLate())
    until = time.monotonic() + 10
    while trace._failure is None and time.monotonic() < until:
        time.sleep(0.01)
    with pytest.raises(TraceFailed, match=r"could not be written .* free space on its disk"):
        trace.observe(AppliedEvent(Begin(), (), ()), world.core)
    with pytest.raises(TraceFailed):
        trace.close()


def test_a_closed_trace_refuses_further_records(tmp_path: Path) -> None:
    trace = open_for(tmp_path / "trace.jsonl")
    trace.close()
    with pytest.raises(TraceFailed, match="is closed and takes no LateAnswer"):
        trace.note(notes.AnswerWasLate())


@pytest.mark.parametrize("enabled", [True, False])
def test_the_memory_is_dumped_with_the_state_whether_or_not_there_is_a_file(tmp_path: Path, enabled: bool) -> None:
    path = tmp_path / "trace.jsonl"
    with open_for(path, num_prompts=80, enabled=enabled, ring_records=30) as trace:
        world = traced_world(trace, "in_order", 80)
        random_moves(world, 3, 100)
        first, waits_for = trace.dump(), world.core.waits_for()
        random_moves(world, 4, 20)
        second = trace.dump()
    assert path.exists() == enabled
    assert [first.name, second.name] == ["trace.ring-1.jsonl", "trace.ring-2.jsonl"]
    records = list(open_trace(first).records())
    assert len(records) == 30
    assert isinstance(records[-1], SnapshotRecord)
    result = replay(first)
    assert result.difference is None
    assert result.core.waits_for() == waits_for
    assert result.events > 0


def test_events_of_a_small_run_take_few_bytes_raw_and_compressed(tmp_path: Path) -> None:
    recorded_run(tmp_path / "trace.jsonl", "ready_first", num_prompts=600, snapshot_every=4096)
    trace = open_trace(tmp_path)
    header = len(lines_of(trace.path)[0])
    raw = trace.path.read_bytes()
    number = len(transitions_of(tmp_path))
    assert (len(raw) - header) / number < 300
    assert len(gzip.compress(raw, 6)) / number < 60


# A process that is killed


def test_a_process_killed_at_any_moment_leaves_a_trace_that_replays_to_its_last_whole_record(tmp_path: Path) -> None:
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["tracing_helpers"])
    chance = random.Random(7)
    some = rotated = 0
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / "trace.jsonl"
        process = forks.Process(target=write_until_killed, args=(path, SAMPLERS[number % 4], number))
        process.start()
        until = time.monotonic() + 60
        while not (path.exists() and path.stat().st_size) and time.monotonic() < until:
            time.sleep(0.01)
        began = time.monotonic()
        time.sleep(chance.uniform(0.05, 0.4))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        lived_s = time.monotonic() - began
        process.join()
        records = list(open_trace(folder).records())
        result = replay(folder)
        assert result.difference is None
        assert result.last_seq == len(records) - 1
        assert lived_s - (records[-1].monotonic_s if records else 0.0) < 2.5  # 1 s, and a busy machine
        some += len(records) > 100
        rotated += len(parts_of(path)) > 1
    assert some > 5
    assert rotated


def test_a_trace_cut_anywhere_reads_and_replays_up_to_its_last_whole_line(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    recorded_run(whole, "ready_first", moves=12)
    content = whole.read_bytes()
    header_end = content.index(b"\n") + 1
    cut = tmp_path / "cut"
    for length in [0, 5, header_end - 1, *range(header_end + 1, len(content), 97)]:
        cut.write_bytes(content[:length])
        if length < header_end:
            with pytest.raises(TraceUnreadable, match=r"is empty|no whole line|no trace of evenstep"):
                open_trace(cut)
            continue
        records = list(open_trace(cut).records())
        assert len(records) == content[:length].count(b"\n") - 1
        assert open_trace(cut).torn == (not content[:length].endswith(b"\n"))
        assert replay(cut).difference is None
        assert replay(cut).last_seq == len(records) - 1


def test_a_trace_of_a_restored_run_has_its_snapshot_and_replays(tmp_path: Path) -> None:
    from fsm.snapshot import restore, snapshot
    from specs.scenarios.world import World

    config = config_of("ready_first", window=2)
    world = World(config, 40)
    random_moves(world, 5, 60)
    saved = json.loads(json.dumps(snapshot(world.core)))
    header = make_header(config, num_prompts=40, seeds={}, snapshot=saved, incarnation=3)
    with Trace(tmp_path / "trace.jsonl", header) as trace:
        world.core = restore(
            world.setup, saved, incarnation=3, observer=lambda transition: trace.observe(transition, world.core)
        )
        world._open()
        random_moves(world, 6, 10_000)
    result = replay(tmp_path)
    assert world.over
    assert result.difference is None
    assert result.core.book.closed == world.core.book.closed
