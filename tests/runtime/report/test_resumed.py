"""The report of a run that was resumed or restarted: the traces of all its processes, and every step once."""

from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fsm.machines.prompt_group import GroupState
from runtime.cli.app import app
from runtime.report.attempts import REDONE
from runtime.report.collect import collect, rows_of
from runtime.report.columns import NOT_YET
from runtime.report.happenings import Kind
from runtime.report.traces import older_of
from runtime.trace.reader import open_trace
from tests.runtime.report.helpers import of_all_traces, resumed_twice
from tests.runtime.trace.helpers import SAMPLERS


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(("kept", "lost"), [(0, 40), (45, 30), (60, 3), (80, 90)])
def test_every_group_and_step_of_a_resumed_run_counts_once(tmp_path: Path, sampler: str, kept: int, lost: int) -> None:
    """C2"""
    core = resumed_twice(tmp_path, sampler, kept=kept, lost=lost)
    told = of_all_traces(tmp_path)
    assert told.counters.sheet() == core.state.sheet._asdict()
    states = Counter(told.attempts.rows["state"])
    for state in (GroupState.READY, GroupState.TRAINED, GroupState.FILTERED, GroupState.DROPPED, GroupState.EVICTED):
        assert states[state] == core.state.sheet[state], state.name
    assert states[REDONE] > 0
    closed = [row for row in rows_of(told.steps) if row["closed"] != NOT_YET]
    named = [(row["step"], row["selected"], row["charged"], row["short"]) for row in closed]
    assert named == [tuple(step) for step in core.book.closed]
    times = [row["closed"] for row in closed]
    assert times == sorted(times)


def test_the_page_says_where_the_run_went_on_and_what_was_done_again(tmp_path: Path) -> None:
    resumed_twice(tmp_path, "in_order")
    told = of_all_traces(tmp_path)
    marks = rows_of(told.happenings.marks)
    texts = [told.texts.kept[int(row["text"])] for row in marks if row["kind"] == Kind.RESUMED]
    step = told.processes[1].step
    assert step > 0
    said = [text for text in texts if f"goes on with step {step}" in text]
    assert [text.split(" ")[0] for text in said] == ["trace-1.jsonl", "trace-2.jsonl"]
    assert f"after trace-1.jsonl ended, so steps {step} to " in said[1]
    page = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(page)])
    assert result.exit_code == 0, result.output
    assert "older" not in result.output


def test_a_trace_that_is_named_is_shown_alone(tmp_path: Path) -> None:
    resumed_twice(tmp_path, "in_order")
    alone = collect(open_trace(tmp_path / "trace-1.jsonl"))
    page = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["report", str(tmp_path / "trace-1.jsonl"), "-o", str(page)])
    assert result.exit_code == 0, result.output
    assert f'"records":{alone.records},' in page.read_text(encoding="ascii")


def test_an_older_trace_that_cannot_be_read_is_left_out_by_name(tmp_path: Path) -> None:
    resumed_twice(tmp_path, "in_order")
    (tmp_path / "trace.jsonl").write_text("damaged\n")
    newest = open_trace(tmp_path)
    older = older_of(newest)
    assert [trace.path.name for trace in older.traces] == ["trace-1.jsonl"]
    result = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.output
    assert "the run's first traces are left out" in result.output
    assert "trace.jsonl is no trace of evenstep" in result.output


def test_a_process_that_died_before_anything_happened_leaves_no_gap(tmp_path: Path) -> None:
    core = resumed_twice(tmp_path, "in_order")
    header = (tmp_path / "trace-1.jsonl").read_bytes().splitlines(keepends=True)[0]
    (tmp_path / "trace-1.jsonl").write_bytes(header)
    newest = open_trace(tmp_path)
    assert [trace.path.name for trace in older_of(newest).traces] == ["trace.jsonl"]
    assert of_all_traces(tmp_path).counters.sheet() == core.state.sheet._asdict()
