"""What `evenstep explain` prints, and its exit codes."""

import json
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from fsm.events import FailureKind
from fsm.rules import losses
from runtime.cli.app import app
from runtime.trace.notes import WorkerDied
from tests.runtime.explain.helpers import Recorded, config_of, recorded, recording, restamped

KEYS = {"verdict", "step", "selected", "charged", "size", "waits_for", "root", "advice"}
HOSTILE = "<script>alert(1)</script> [bold red]no[/bold red] \x1b[2J\x1b]0;title\x07 \x00 \udcff\u202e 'quotes\""


def told(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["explain", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.fixture
def deadlocked(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    config = config_of("ready_first", 8, async_rl={"max_buffered_rollouts": 4})
    recorded(path, config, lambda run: run.commit(*run.in_flight()))
    return path


def test_a_person_is_told_the_verdict_the_counts_the_chain_the_root_and_what_to_change(deadlocked: Path) -> None:
    code, output = told(str(deadlocked))
    assert code == 7
    assert output.startswith("deadlocked   step 0: 0 selected + 0 charged of 8")
    for heading in ("class", "what waits for what", "proof", "root", "what to change"):
        assert heading in output
    assert "dispatch index 0, gate open for 0.0 s, in flight 0 of 4, buffer 4 of 4, no pool, data left" in output
    row = next(line for line in output.splitlines() if "start weight 0" in line and "waits" not in line)
    assert row.split() == ["start", "weight", "0", "·", "·", "4", "4"]


def test_the_run_s_directory_is_as_good_as_its_file(deadlocked: Path) -> None:
    assert told(str(deadlocked.parent)) == told(str(deadlocked))


def test_json_has_the_promised_keys_and_the_root_ends_the_chain(deadlocked: Path) -> None:
    code, output = told(str(deadlocked), "--json")
    given = json.loads(output)
    assert code == 7
    assert given.keys() >= KEYS
    assert (given["verdict"], given["step"], given["selected"], given["charged"], given["size"]) == (
        "deadlocked", 0, 0, 0, 8
    )  # fmt: skip
    assert given["root"] == given["waits_for"][-1]
    assert "max_buffered_rollouts" in given["advice"]


def test_a_moment_may_be_given_as_a_number_or_as_seconds_or_as_a_time(deadlocked: Path) -> None:
    for at in ("5", "+0", "2100-01-01T00:00:00"):
        code, output = told(str(deadlocked), "--at", at, "--json")
        assert code in (6, 7), output  # a livelock while the four are in flight
    assert json.loads(told(str(deadlocked), "--at", "3", "--json")[1])["seq"] == 3


@pytest.mark.parametrize("at", ["yesterday", "+soon", "25:00:00", "²", "9" * 5000, "+inf", "+nan"])
def test_what_is_no_moment_is_refused_with_what_is_allowed(deadlocked: Path, at: str) -> None:
    code, output = told(str(deadlocked), "--at", at)
    assert code == 2
    assert "allowed: a record's number" in output


def test_a_record_beyond_the_trace_is_refused_with_its_last(deadlocked: Path) -> None:
    last = json.loads(told(str(deadlocked), "--json")[1])["seq"]
    assert told(str(deadlocked), "--at", str(last))[0] == 7
    code, output = told(str(deadlocked), "--at", str(last + 1))
    assert code == 2
    assert f"--at {last + 1} is beyond the trace, whose last record is {last}" in output


def test_a_file_or_a_run_is_asked_for_and_not_both(deadlocked: Path) -> None:
    for arguments in ([], [str(deadlocked), "--run", "today"]):
        code, output = told(*arguments)
        assert code == 2
        assert "either the FILE of a trace or --run NAME" in output


def test_a_foreign_file_is_refused_by_name(tmp_path: Path) -> None:
    foreign = tmp_path / "notes.txt"
    foreign.write_text("no trace")
    code, output = told(str(foreign))
    assert code == 1
    assert "notes.txt" in output
    assert "no trace of evenstep" in output


def test_a_run_that_has_not_begun_is_told_so(tmp_path: Path) -> None:
    from runtime.trace.files import make_header
    from runtime.trace.writer import Trace

    path = tmp_path / "trace.jsonl"
    with Trace(path, make_header(config_of("in_order", 2), num_prompts=4, seeds={})):
        pass
    code, output = told(str(path))
    assert code == 0
    assert "the run has not begun" in output


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_hostile_content_is_shown_as_text(tmp_path: Path, arguments: list[str]) -> None:
    path = tmp_path / "trace.jsonl"

    def drive(run: Recorded) -> None:
        run.world.fail(0, FailureKind.INFRA, HOSTILE)
        for worker in ("generation-0", "generation-1"):
            run.note(WorkerDied(worker, HOSTILE))

    recorded(path, config_of("in_order", 2, failure={"backoff_base_s": 1.0}), drive)
    code, output = told(str(path), *arguments)
    assert code == 5
    assert "<script>alert(1)</script> [bold red]no[/bold red]" in output
    assert all(character.isprintable() or character == "\n" for character in output)


def test_an_open_trace_is_explained_as_of_now(tmp_path: Path) -> None:
    """A process that hangs writes nothing any more, and its rollouts grow old all the same."""
    path = tmp_path / "trace.jsonl"
    with recording(path, config_of("in_order", 2)) as run:
        run.commit(0)
        run.trace.flush()
        code, output = told(str(path), "--json")  # opened long ago: the clock of the world is not that of this machine
        assert code == 5
        assert json.loads(output)["silent_s"] > 1_000
        assert "prompt 1 (dispatch 1, slot 1, start weight 0) on generation-1" in json.loads(output)["root"]
        run.commit(1)


def test_a_rotated_trace_is_explained_like_one_of_one_file(tmp_path: Path) -> None:
    explanations = []
    for folder, options in (("one", {}), ("many", {"max_bytes": 4096})):
        path = tmp_path / folder / "trace.jsonl"
        path.parent.mkdir()
        with recording(path, config_of("in_order", 4), **options) as run:
            for _ in range(5):
                run.later(2.0)
                run.commit(*run.in_flight()[:4])
                run.close()
            run.commit(*run.in_flight()[:4])
            run.later(900.0)
        explanations.append(told(str(path), "--json"))
    assert list((tmp_path / "many").glob("*.gz"))
    assert explanations[0] == explanations[1]
    assert json.loads(explanations[0][1])["verdict"] == "stalled"


def test_a_torn_line_at_the_end_is_left_out(tmp_path: Path, deadlocked: Path) -> None:
    torn = tmp_path / "torn" / "trace.jsonl"
    torn.parent.mkdir()
    torn.write_bytes(deadlocked.read_bytes() + b'{"q":99,"t":1.0,"e":["GF",[')
    assert told(str(torn), "--json")[0] == 7


def test_the_end_of_a_process_whose_run_is_not_over_is_said(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with recording(path, config_of("in_order", 2)) as run:
        run.commit(0)
        seq = run.trace.records - 1
    said = "the process ended here in good order"
    assert said in told(str(path))[1]
    assert said not in told(str(path), "--at", str(seq))[1]


def test_a_state_that_today_s_core_does_not_come_to_is_said_to_be_today_s(tmp_path: Path) -> None:
    """A process that was killed leaves no last snapshot; its events are then applied to today's core."""
    path, copy = tmp_path / "trace.jsonl", tmp_path / "killed" / "trace.jsonl"
    copy.parent.mkdir()
    config = config_of("weight_fifo", 4, grpo={"use_dynamic_sampling": True}, failure={"on_dropped_prompt": "replace"})
    with patch.object(losses, "replace_or_lose", restamped), recording(path, config, snapshot_every=1_000) as run:
        run.commit(*run.in_flight()[:4])
        run.close()
        run.filter(min(run.in_flight()))
        run.trace.flush()
        copy.write_bytes(path.read_bytes())
    code, output = told(str(copy))
    assert code in (0, 5), output
    assert "the state is today's: from record" in output
    assert "the state is today's" not in told(str(path))[1]
