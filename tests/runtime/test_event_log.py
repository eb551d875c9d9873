"""The event log records each applied event, at little cost, and today's core answers a replay in the same way."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, get_args

import pytest
from bookkeeping_helpers import config_of, random_moves, world_of

from fsm import effects, events
from fsm.core import Transition
from fsm.effects import ClearRows, SelectedGroup, StartRollout, Stopped, TrainChunk
from fsm.errors import BelowFloor
from fsm.events import Attempt, BackoffOver, Begin, ClaimUnreadable, FailureKind, GroupFailed, GroupFinished
from fsm.samplers.protocol import GroupRecord
from fsm.snapshot import restore, snapshot
from fsm.state import State
from runtime.event_log import (
    EventLog,
    EventLogFailed,
    EventLogUnreadable,
    event_log_path,
    make_header,
    read_events,
)
from runtime.event_record import EVENTS, effects_to_json, event_from_json, to_json
from runtime.replay import core_config, replay
from runtime.settings import load_settings
from runtime.summary import balance_sheet
from specs.world import World

SAMPLERS = ("in_order", "ready_first", "windowed", "weight_fifo")
A = Attempt(5, 9, 1)


def recorded_run(path: Path, sampler: str = "in_order", *, seed: int = 0, moves: int = 10_000) -> World:
    """A run of the real core, written down."""
    config = config_of(sampler)
    with EventLog(path, make_header(config, num_prompts=24, seeds={"data": 1})) as log:
        world = world_of(config, 24, lambda transition, _: log(transition))
        random_moves(world, seed, moves)
    return world


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


# What is written


def test_the_header_says_under_what_the_run_was_made(tmp_path: Path) -> None:
    recorded_run(tmp_path / "log")
    header = json.loads(lines_of(tmp_path / "log")[0])
    assert header["format"] == "evenstep events 1"
    assert header["num_prompts"] == 24
    assert header["seeds"] == {"data": 1}
    assert header["snapshot"] is None
    assert header["incarnation"] == 0
    assert header["config"]["grpo"]["num_prompts_per_step"] == 2
    assert {"python", "transitions", "pydantic"} <= header["packages"].keys()
    assert abs(header["started_unix_s"] - time.time()) < 60


def test_every_applied_event_is_one_line_with_its_times_and_effects(tmp_path: Path) -> None:
    seen: list[Transition] = []
    config = config_of()
    with EventLog(tmp_path / "log", make_header(config, num_prompts=24, seeds={})) as log:

        def observe(transition: Transition, _: State) -> None:
            log(transition)
            seen.append(transition)

        world = world_of(config, 24, observe)
        random_moves(world, 1, 40)
    records = read_events(tmp_path / "log").events
    assert [record["seq"] for record in records] == list(range(len(seen)))
    assert [event_from_json(record["event"]) for record in records] == [transition.event for transition in seen]
    assert [record["effects"] for record in records] == [effects_to_json(each.effects) for each in seen]
    times = [record["monotonic_s"] for record in records]
    assert times == sorted(times)
    assert all(abs(record["unix_s"] - time.time()) < 60 for record in records)


def test_a_log_is_never_overwritten(tmp_path: Path) -> None:
    recorded_run(tmp_path / "log", moves=3)
    before = (tmp_path / "log").read_bytes()
    with pytest.raises(FileExistsError):
        EventLog(tmp_path / "log", make_header(config_of(), num_prompts=1, seeds={}))
    assert (tmp_path / "log").read_bytes() == before
    assert [event_log_path(tmp_path, n).name for n in (0, 1)] == ["events.jsonl", "events-1.jsonl"]


@pytest.mark.parametrize(
    "event",
    [
        Begin(),
        GroupFinished(A, True),
        GroupFinished(A, False, GroupRecord(5, 17, 1 / 3, 0.1)),
        GroupFailed(A, FailureKind.DATA, 'line 1\n"two" \u2028 \udc80'),
        BackoffOver(A),
        events.ChunkTrained(3),
        ClaimUnreadable(5, "gone"),
        events.StepFinished(2),
        events.SyncFinished(3),
        events.StallTimeout(600.5),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_comes_back_from_json_as_it_was(event: events.Event) -> None:
    back = event_from_json(json.loads(json.dumps(to_json(event))))
    assert back == event
    assert type(back) is type(event)
    assert EVENTS.keys() == {kind.__name__ for kind in get_args(events.Event)}


@pytest.mark.parametrize("kind", get_args(effects.Effect), ids=lambda kind: kind.__name__)
def test_every_effect_can_be_written_down_by_field(kind: type[Any]) -> None:
    values = {
        "attempt": A,
        "target_step": None,
        "groups": (SelectedGroup(1, 0), SelectedGroup(2, 1)),
        "prompts": (1, 2),
        "why": "trained",
        "error": BelowFloor("too few"),
        "delay_s": 0.5,
    }
    effect = kind(*(values.get(name, 7) for name in kind._fields))
    written = to_json(effect)
    assert written == json.loads(json.dumps(written))
    assert list(written) == ["type", *kind._fields]


def test_effects_are_written_with_their_names() -> None:
    assert effects_to_json(
        (StartRollout(A, 2, None, 1), TrainChunk(0, 1, (SelectedGroup(4, 0),)), Stopped(BelowFloor("too few")))
    ) == [
        {
            "type": "StartRollout",
            "attempt": {"prompt": 5, "dispatch": 9, "incarnation": 1},
            "slot": 2,
            "target_step": None,
            "start_weight": 1,
        },
        {"type": "TrainChunk", "step": 0, "chunk": 1, "groups": [{"prompt": 4, "start_weight": 0}]},
        {"type": "Stopped", "error": {"type": "BelowFloor", "message": "too few"}},
    ]


# Replay


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("seed", range(4))
def test_a_recorded_run_replays_with_the_same_effects_and_balance(tmp_path: Path, sampler: str, seed: int) -> None:
    world = recorded_run(tmp_path / "log", sampler, seed=seed)
    result = replay(tmp_path / "log")
    assert world.over
    assert result.difference is None
    assert result.events == len(read_events(tmp_path / "log").events) > 20
    assert result.status == world.status
    assert result.balance == balance_sheet(world.core)
    assert result.closed == tuple(world.core.book.closed)


def test_a_restored_run_replays_from_the_snapshot_in_its_header(tmp_path: Path) -> None:
    config = config_of("ready_first", window=2)
    world = world_of(config, 40)
    random_moves(world, 5, 60)
    saved = json.loads(json.dumps(snapshot(world.core)))
    path = tmp_path / "log"
    with EventLog(path, make_header(config, num_prompts=40, seeds={}, snapshot=saved, incarnation=3)) as log:
        world.core = restore(world.setup, saved, incarnation=3, observer=log)
        world._open()
        random_moves(world, 6, 10_000)
    result = replay(path)
    assert world.over
    assert result.difference is None
    assert result.balance == balance_sheet(world.core)
    assert result.closed == tuple(world.core.book.closed)


def test_equal_runs_have_equal_digests_whatever_their_times(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        recorded_run(tmp_path / name, "ready_first", seed=seed)
    a, b, c = (read_events(tmp_path / name).events for name in "abc")
    assert [record["digest"] for record in a] == [record["digest"] for record in b]
    assert a[-1]["digest"] != c[-1]["digest"]
    assert a[-1]["monotonic_s"] != b[-1]["monotonic_s"]


def test_the_first_difference_is_shown_in_full(tmp_path: Path) -> None:
    path = tmp_path / "log"
    recorded_run(path)
    lines = lines_of(path)
    header = json.loads(lines[0])
    header["config"]["async_rl"]["max_inflight_prompts"] = 3  # as if the rule D1 had changed since
    path.write_text("\n".join([json.dumps(header), *lines[1:]]) + "\n")
    result = replay(path)
    assert result.events == 0
    assert result.difference is not None
    assert result.difference.event == {"type": "Begin"}
    assert len(result.difference.recorded) == 4
    assert len(result.difference.today) == 3
    assert str(result.difference).count('"StartRollout"') == 7


def test_an_event_that_today_is_refused_is_a_difference_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with EventLog(path, make_header(config_of(), num_prompts=24, seeds={})) as log:
        log(Transition(GroupFinished(A, False), (), ()))
    result = replay(path)
    assert result.difference is not None
    assert "refused, IllegalEvent: the run has not begun" in str(result.difference)


def test_the_core_of_a_whole_run_configuration_is_found_again() -> None:
    settings = load_settings(None)
    assert core_config(make_header(settings, num_prompts=1, seeds={})["config"]).grpo == settings.grpo
    assert core_config(settings.model_dump(mode="json")).async_rl == settings.async_rl


# Torn and damaged logs


def test_a_log_cut_anywhere_reads_and_replays_up_to_its_last_whole_line(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    recorded_run(whole, "ready_first", moves=12)
    content = whole.read_bytes()
    header_end = content.index(b"\n") + 1
    cut = tmp_path / "cut"
    for length in range(0, len(content), 67):
        cut.write_bytes(content[:length])
        if length < header_end:
            with pytest.raises(EventLogUnreadable, match="no whole line"):
                read_events(cut)
            continue
        result = replay(cut)
        assert result.difference is None
        assert result.events == content[:length].count(b"\n") - 1
        assert result.torn == (not content[:length].endswith(b"\n"))


def change_text(lines: list[str]) -> None:
    lines[3] = lines[3].replace('"prompt":', '"prompt":1', 1)


def drop_line(lines: list[str]) -> None:
    del lines[3]


def break_line(lines: list[str]) -> None:
    lines[3] = lines[3][:20]


def drop_key(lines: list[str]) -> None:
    lines[3] = lines[3].replace('"effects"', '"effect"')


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (change_text, ":4: the digest does not match"),
        (drop_line, ":4: seq is 3, expected 2"),
        (break_line, ":4: not JSON"),
        (drop_key, ":4: effects is missing"),
    ],
)
def test_damage_before_the_last_line_is_named_with_its_line(tmp_path: Path, damage: Any, says: str) -> None:
    path = tmp_path / "log"
    recorded_run(path, moves=10)
    lines = lines_of(path)
    damage(lines)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(EventLogUnreadable, match=says):
        read_events(path)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"format": "evenstep events 9"}\n')
    with pytest.raises(EventLogUnreadable, match="'evenstep events 9'; this evenstep reads 'evenstep events 1'"):
        read_events(tmp_path / "log")


# The writer


def test_lines_are_in_the_file_soon_without_a_flush(tmp_path: Path) -> None:
    config = config_of()
    log = EventLog(tmp_path / "log", make_header(config, num_prompts=24, seeds={}), flush_interval_s=0.02)
    world_of(config, 24, lambda transition, _: log(transition))
    until = time.monotonic() + 10
    while not read_events(tmp_path / "log").events and time.monotonic() < until:
        time.sleep(0.01)
    assert len(read_events(tmp_path / "log").events) == 1
    log.close()
    log.close()


def test_flush_returns_once_everything_is_in_the_file(tmp_path: Path) -> None:
    config = config_of()
    with EventLog(tmp_path / "log", make_header(config, num_prompts=24, seeds={}), flush_interval_s=3600) as log:
        world = world_of(config, 24, lambda transition, _: log(transition))
        random_moves(world, 0, 9)
        assert read_events(tmp_path / "log").events == []
        log.flush()
        assert len(read_events(tmp_path / "log").events) == log.events > 5


def test_a_log_that_cannot_be_written_says_so_at_the_next_event_and_at_close(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log", make_header(config_of(), num_prompts=24, seeds={}), flush_interval_s=0.01)
    log._file.close()
    log(Transition(Begin(), (), ()))
    until = time.monotonic() + 10
    while log._failure is None and time.monotonic() < until:
        time.sleep(0.01)
    with pytest.raises(EventLogFailed, match=r"could not be written after 0 events .* free its disk"):
        log(Transition(Begin(), (), ()))
    with pytest.raises(EventLogFailed):
        log.close()


def test_the_control_path_pays_at_most_15_microseconds_an_event(tmp_path: Path) -> None:
    transition = Transition(
        GroupFinished(A, False, GroupRecord(5, 17, 0.5, 0.5)),
        (),
        (ClearRows((1, 2, 3), "trained"), StartRollout(A, 1, None, 2)),
    )
    costs = []
    with EventLog(tmp_path / "log", make_header(config_of(), num_prompts=24, seeds={})) as log:
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(2000):
                log(transition)
            costs.append((time.perf_counter() - began) / 2000 * 1e6)
    assert min(costs) < 15, costs


def test_a_closed_log_refuses_further_events(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log", make_header(config_of(), num_prompts=24, seeds={}), flush_interval_s=3600)
    log.close()
    with pytest.raises(EventLogFailed, match="is closed"):
        log(Transition(Begin(), (), ()))
    assert read_events(tmp_path / "log").events == []
