"""Readers of a trace: the state at any moment, questions, replay against today's core, and hostile content."""

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fsm.core import AppliedEvent, Core
from fsm.effects import StartRollout
from fsm.events import FailureKind, GroupFailed, GroupFinished
from fsm.state import State
from runtime.cli.app import app
from runtime.trace.files import TraceUnreadable
from runtime.trace.moment import state_at
from runtime.trace.notes import WorkerDied
from runtime.trace.reader import follow, open_trace
from runtime.trace.records import TransitionRecord
from runtime.trace.replay import replay
from runtime.trace.select import MACHINES, Question, select
from tests.runtime.bookkeeping import random_moves
from tests.runtime.trace.helpers import SAMPLERS, open_for, recorded_run, traced_world

HOSTILE = 'an <b>"answer"</b> \x1b[31mred\x1b[0m \x07 \u202e \ud800 \x9b2J [bold]no[/bold]\n' + "x" * 1_000_000


def run_command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


# The state at any moment


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("max_bytes", [None, 12_000])
def test_the_state_at_any_record_is_that_of_the_run_then(tmp_path: Path, sampler: str, max_bytes: int | None) -> None:
    states: dict[int, State] = {}

    def remember(seq: int, core: Core) -> None:
        states[seq] = core.state

    with open_for(tmp_path / "trace.jsonl", sampler, num_prompts=60, max_bytes=max_bytes) as trace:
        world = traced_world(trace, sampler, 60, remember)
        random_moves(world, 1, 10_000)
    opened = open_trace(tmp_path)
    for seq in list(states)[::9]:
        moment = state_at(opened, seq=seq)
        assert moment.seq == seq
        assert moment.diverged_seq is None
        assert moment.core.state == states[seq]
    assert state_at(opened).core.state == world.core.state
    assert state_at(opened, unix_s=opened.started_unix_s + 10**6).core.state == world.core.state
    assert state_at(opened, unix_s=opened.started_unix_s - 1).seq == -1


def test_a_trace_without_its_beginning_says_so_for_a_moment_before_its_first_snapshot(tmp_path: Path) -> None:
    with open_for(tmp_path / "trace.jsonl", ring_records=15) as trace:
        random_moves(traced_world(trace, "in_order", 24), 3, 30)
        ring = trace.dump()
    first = next(open_trace(ring).records()).seq
    with pytest.raises(TraceUnreadable, match=f"begins with record {first}"):
        state_at(open_trace(ring), seq=first)


# Questions


def test_a_prompts_life_is_every_record_that_names_it_and_its_admission(tmp_path: Path) -> None:
    recorded_run(tmp_path / "trace.jsonl", "ready_first", seed=2)
    opened = open_trace(tmp_path)
    records = [r for r in opened.records() if isinstance(r, TransitionRecord)]
    asked = [
        r for r in records if isinstance(r.transition.event, GroupFinished) and r.transition.event.attempt.prompt == 9
    ]
    found = [r for r in select(opened, Question(prompt=9)) if isinstance(r, TransitionRecord)]
    assert asked
    assert {r.seq for r in asked} <= {r.seq for r in found}
    text = [str(r.transition) for r in found]
    assert any("first_prompt" in line for line in text[:1])
    unasked = {r.seq for r in records} - {r.seq for r in found}
    assert not [r for r in records if r.seq in unasked and "prompt=9," in str(r.transition)]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_steps_records_are_those_while_it_was_open_and_its_groups_before(tmp_path: Path, sampler: str) -> None:
    recorded_run(tmp_path / "trace.jsonl", sampler, seed=1, num_prompts=60)
    opened = open_trace(tmp_path)
    seqs = [record.seq for record in select(opened, Question(step=3))]
    records = {r.seq: r for r in opened.records()}
    opens = next(s for s, r in records.items() if "StepClosed(step=2," in str(r))
    closes = next(s for s, r in records.items() if "WeightsSynced(version=4)" in str(r))
    assert seqs == sorted(seqs)
    assert set(range(opens + 1, closes + 1)) <= set(seqs)
    assert max(seqs) == closes
    trained = [prompt for s in range(opens, closes) for prompt in _selected(records[s], 3)]
    started = [
        s for s, r in records.items() if any(f"StartRollout(attempt=Attempt(prompt={p}," in str(r) for p in trained)
    ]
    assert trained
    assert set(started) <= set(seqs)


def _selected(record: Any, step: int) -> list[int]:
    effects = record.transition.effects if isinstance(record, TransitionRecord) else ()
    return [g.prompt for e in effects if type(e).__name__ == "TrainChunk" and e.step == step for g in e.groups]


def test_machines_kinds_groups_and_times_select_what_they_say(tmp_path: Path) -> None:
    recorded_run(tmp_path / "trace.jsonl", "in_order", seed=4, num_prompts=60)
    opened = open_trace(tmp_path)
    every = list(opened.records())
    lost = [r.seq for r in every if "GroupLost(" in str(r)]
    assert [r.seq for r in select(opened, Question(kind="GroupLost"))] == lost
    for machine, kinds in MACHINES.items():
        names = [f"{kind.__name__}(" for kind in kinds]
        expected = [
            r.seq for r in every if isinstance(r, TransitionRecord) and any(n in str(r[3].changes) for n in names)
        ]
        assert [r.seq for r in select(opened, Question(machine=machine))] == expected
    middle = every[len(every) // 2].monotonic_s
    since = [r.seq for r in every if r.monotonic_s >= middle]
    assert [r.seq for r in select(opened, Question(since_s=middle))] == since
    slot = list(select(opened, Question(group=7)))
    assert any(isinstance(e, StartRollout) and e.slot == 7 for r in slot if len(r) == 4 for e in _effects(r))


def _effects(record: Any) -> tuple[Any, ...]:
    return record.transition.effects if isinstance(record, TransitionRecord) else ()


def test_a_live_trace_is_followed_through_rotation_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    trace = open_for(path, "ready_first", num_prompts=400, max_bytes=30_000, flush_interval_s=0.01)
    world = traced_world(trace, "ready_first", 400)
    trace.flush()
    seen: list[bytes] = []
    reader = threading.Thread(target=lambda: seen.extend(follow(open_trace(path))))
    reader.start()
    while not world.over:
        random_moves(world, trace.records, 40)
        time.sleep(0.01)
    trace.close()
    reader.join(timeout=30)
    assert not reader.is_alive()
    assert len(list(tmp_path.iterdir())) > 2
    assert seen == list(open_trace(path).lines())


# Replay


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_recorded_run_replays_with_the_same_effects_states_and_properties(tmp_path: Path, sampler: str) -> None:
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        world = recorded_run(folder / "trace.jsonl", sampler, seed=seed)
        result = replay(folder)
        assert world.over
        assert result.difference is None
        assert result.snapshots > 2
        assert result.status == world.status
        assert result.core.book.closed == world.core.book.closed
        code, output = run_command("replay", str(folder))
        assert code == 0, output
        assert "answered the same" in output


def changed(path: Path, line: int, old: str, new: str) -> None:
    lines = path.read_text().splitlines(keepends=True)
    assert old in lines[line]
    lines[line] = lines[line].replace(old, new, 1)
    path.write_text("".join(lines))


def test_the_first_difference_of_an_answer_is_shown_in_full(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    recorded_run(path)
    changed(path, 0, '"max_inflight_prompts":null', '"max_inflight_prompts":3')  # as if the rule D1 had changed since
    result = replay(path)
    assert result.events == 0
    assert result.difference is not None
    assert result.difference.event == {"type": "Begin"}
    assert result.difference.recorded.count('"StartRollout"') == 4
    assert result.difference.today.count('"StartRollout"') == 3
    code, output = run_command("replay", str(path))
    assert code == 2
    assert output.count('"StartRollout"') == 7


def test_a_state_that_differs_at_a_snapshot_and_a_refused_event_are_differences(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    recorded_run(path)
    number = next(n for n, line in enumerate(path.read_text().splitlines()) if '"s":{' in line)
    changed(path, number, '"next_slot":', '"next_slot":1')
    difference = replay(path).difference
    assert difference is not None
    assert difference.what == "state"
    assert "next_slot" in difference.recorded
    assert replay(path, to=number - 2).difference is None
    with open_for(tmp_path / "other.jsonl") as trace:
        core = traced_world(trace, "in_order", 24).core
        attempt = core.book.attempt(next(iter(core.book.roster.in_flight.values())))
        trace.observe(AppliedEvent(GroupFinished(attempt._replace(dispatch=99), False), (), ()), core)
    refused = replay(tmp_path / "other.jsonl").difference
    assert refused is not None
    assert "refused, LateAnswer" in refused.today


@pytest.mark.parametrize(
    ("there", "instead"),
    [('["gc",', '["gc",0,'), ('"m":[[', '"m":[1.5,['), ('"e":["GF",[', '"e":["GF",7,[')],
)
def test_a_record_with_values_that_no_run_writes_is_named(tmp_path: Path, there: str, instead: str) -> None:
    path = tmp_path / "trace.jsonl"
    recorded_run(path)
    number = next(n for n, line in enumerate(path.read_text().splitlines()) if n and there in line)
    changed(path, number, there, instead)
    code, output = run_command("replay", str(path))
    assert code == 1
    assert re.search(rf"record {number - 1}(:| cannot be replayed)", output)


def test_a_broken_property_is_a_difference(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    recorded_run(path)
    result = replay(
        path, check=lambda core, before, transition: "does not hold" if core.state.trainer.version else None
    )
    assert result.difference is not None
    assert (result.difference.what, result.difference.today) == ("property", "does not hold")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("kinds", None, "the header's kinds is None"),
        ("num_prompts", "8", "the header's num_prompts is '8'"),
        ("started_unix_s", 1e300, "the header's started_unix_s is 1e\\+300"),
        ("config", {"grpo": {}}, "lacks one of grpo, async_rl, loss_fn, policy"),
        ("snapshot", [], r"the header's snapshot is \[\]"),
    ],
)
def test_a_header_that_no_run_writes_is_refused(tmp_path: Path, key: str, value: Any, says: str) -> None:
    recorded_run(tmp_path / "trace.jsonl", "in_order", num_prompts=8)
    header, rest = (tmp_path / "trace.jsonl").read_text(encoding="ascii").split("\n", 1)
    changed = json.dumps({**json.loads(header), key: value}, separators=(",", ":"))
    (tmp_path / "trace.jsonl").write_text(f"{changed}\n{rest}", encoding="ascii")
    with pytest.raises(TraceUnreadable, match=says):
        open_trace(tmp_path)


@pytest.mark.parametrize("key", ["part", "snapshot", "kinds"])
def test_a_header_that_lacks_a_key_is_refused(tmp_path: Path, key: str) -> None:
    recorded_run(tmp_path / "trace.jsonl", "in_order", num_prompts=8)
    header, rest = (tmp_path / "trace.jsonl").read_text(encoding="ascii").split("\n", 1)
    kept = {name: value for name, value in json.loads(header).items() if name != key}
    (tmp_path / "trace.jsonl").write_text(f"{json.dumps(kept, separators=(',', ':'))}\n{rest}", encoding="ascii")
    with pytest.raises(TraceUnreadable, match=f"the header has no {key}"):
        open_trace(tmp_path)


def test_a_header_whose_configuration_lacks_a_key_is_refused_by_what_needs_it(tmp_path: Path) -> None:
    recorded_run(tmp_path / "trace.jsonl", "in_order", num_prompts=8)
    text = (tmp_path / "trace.jsonl").read_text(encoding="ascii")
    (tmp_path / "trace.jsonl").write_text(text.replace('"train_global_batch_size":', '"x":', 1), encoding="ascii")
    for command in ("replay", "explain", "report"):
        code, output = run_command(
            command, str(tmp_path), *(["-o", str(tmp_path / "page")] if command == "report" else [])
        )
        assert code == 1, output
        assert "the header's configuration is damaged (KeyError: 'train_global_batch_size')" in output


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\x00\x01\x02", "is no trace of evenstep"),
        (b'{"a": 1}\n', "is no trace of evenstep"),
        (b'{"format":"evenstep trace 9"}\n', "this evenstep reads 'evenstep trace 1'"),
        (b'{"format":"evenstep trace 1"', "no whole line"),
    ],
)
def test_an_empty_or_foreign_file_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "file").write_bytes(content)
    for command in ("trace", "replay"):
        code, output = run_command(command, str(tmp_path / "file"))
        assert code == 1
        assert says in output
    assert run_command("trace", str(tmp_path / "none"))[0] == 1


def test_a_lost_line_and_a_line_that_is_no_json_are_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    recorded_run(path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5] + lines[6:]))
    with pytest.raises(TraceUnreadable, match="record 5 follows 3"):
        replay(path)
    path.write_text("".join([*lines[:5], "nonsense\n", *lines[5:]]))
    with pytest.raises(TraceUnreadable, match="not JSON"):
        replay(path)


# The commands, and hostile content


def test_the_commands_help_has_an_example() -> None:
    assert "evenstep trace runs/" in run_command("trace", "--help")[1]
    assert "evenstep replay runs/" in run_command("replay", "--help")[1]


def test_wrong_use_names_what_there_is(tmp_path: Path) -> None:
    recorded_run(tmp_path / "trace.jsonl")
    for options, says in (
        (("--kind", "Nope"), "GroupLost"),
        (("--machine", "Nope"), "ShortfallLedger"),
        (("--since", "noon"), "takes seconds"),
        (("--step", "999"), "nothing of step 999"),
        (("--group", "999"), "no rollout in slot 999"),
    ):
        code, output = run_command("trace", str(tmp_path), *options)
        assert code == 2
        assert says in output


def test_what_matches_nothing_is_said_and_is_no_failure(tmp_path: Path) -> None:
    recorded_run(tmp_path / "trace.jsonl")
    for options, says in (
        (("--prompt", "99999"), "nothing matches --prompt 99999 in "),
        (("--kind", "LateAnswer", "--json"), "nothing matches --kind LateAnswer in "),
        (("--machine", "Run", "--prompt", "99999"), "nothing matches --prompt 99999 and --machine Run in "),
        (("--since", "86400"), "nothing matches --since 86400.0 in "),
    ):
        result = CliRunner().invoke(app, ["trace", str(tmp_path), *options])
        assert (result.exit_code, result.stdout) == (0, "")
        assert says in result.stderr
    header = (tmp_path / "trace.jsonl").read_bytes().splitlines(keepends=True)[0]
    (tmp_path / "trace.jsonl").write_bytes(header)
    assert "has no record" in CliRunner().invoke(app, ["trace", str(tmp_path)]).stderr


def hostile_run(path: Path) -> None:
    with open_for(path) as trace:
        world = traced_world(trace, "in_order", 24)
        trace.note(WorkerDied("w\x1b]0;title\x07", HOSTILE))
        prompt = next(iter(world.started_s)).prompt
        world.fail(prompt, FailureKind.DATA, HOSTILE)


def test_hostile_content_is_shown_as_text_and_comes_back_whole(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    hostile_run(path)
    for arguments in (("trace", str(path)), ("trace", str(path), "--json"), ("replay", str(path))):
        code, output = run_command(*arguments)
        assert code == 0
        assert not [c for c in output if not c.isprintable() and c != "\n"], arguments
    _, shown = run_command("trace", str(path), "--kind", "GroupFailed")
    assert "\\x1b[31mred" in shown
    assert "[bold]no[/bold]" in shown
    assert "more)" in shown
    assert len(shown) < 5000
    events = [r.transition.event for r in open_trace(path).records() if isinstance(r, TransitionRecord)]
    failed = next(event for event in events if isinstance(event, GroupFailed))
    assert failed.error == HOSTILE


def test_broken_utf8_in_a_file_is_shown_escaped(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    hostile_run(path)
    path.write_bytes(path.read_bytes().replace(b"an <b>", b"an \xff\xfe"))
    code, output = run_command("trace", str(path), "--kind", "WorkerDied")
    assert code == 0
    assert "\\udcff\\udcfe" in output
