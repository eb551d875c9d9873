"""Tables of samples in the real TensorBoard and W&B: every word is there, and none is markup."""

import html
import json
import re
from pathlib import Path

import pytest

from runtime.metrics.sample_table import markdown_table, rows_of_table
from runtime.metrics.writers import close_writers, open_writers
from tests.runtime.report.helpers import HOSTILE
from tests.runtime.samples.helpers import line_of

BAD = HOSTILE + "**bold** [link](http://x) `code` | cell |\nnext # line \ud800"


def test_a_table_comes_every_so_many_steps_and_has_samples_alone() -> None:
    lines = [{"kind": "resumed", "step": 10, "incarnation": 1}, line_of(10, text="said", reward=0.25)]
    (row,) = rows_of_table(10, lines, 10)
    assert (row["step"], row["completion"], row["reward"], row["fate"]) == (10, "said", 0.25, "trained")
    assert rows_of_table(11, lines, 10) == []
    assert rows_of_table(10, lines, None) == []


def test_no_text_of_a_cell_is_markdown_or_html() -> None:
    (row,) = rows_of_table(0, [line_of(0, text=BAD)], 1)
    table = markdown_table([row])
    assert len(table.splitlines()) == 3
    cells = table.splitlines()[2].split(" | ")
    assert not re.search(r"[<>*`\[\]()#]", re.sub(r"&#\d+;|<br>", "", cells[4]))
    assert html.unescape(cells[4].replace("<br>", "\n")) == row["completion"]
    assert "\\x1b[2J" in row["completion"]


def test_tensorboard_shows_a_table_of_samples(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writers = open_writers(tmp_path, config={}, tensorboard=True, samples=True, table_every_steps=5)
    for writer in writers:
        for step in range(6):
            writer.show_samples(step, [line_of(step, text=BAD)])
    close_writers(writers)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    shown = events.Tensors("samples/text_summary")
    assert [event.step for event in shown] == [0, 5]
    assert b"bold" in shown[0].tensor_proto.string_val[0]
    assert b"<script" not in shown[0].tensor_proto.string_val[0]
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == 6


@pytest.mark.filterwarnings("default")
def test_wandb_gets_a_table_of_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    writers = open_writers(tmp_path, config={}, wandb_project="p", table_every_steps=1)
    for writer in writers:
        writer.show_samples(0, [line_of(0, text=BAD)])
    close_writers(writers)
    (table,) = tmp_path.rglob("*.table.json")
    shown = json.loads(table.read_text())
    completion = shown["data"][0][shown["columns"].index("completion")]
    assert "**bold** [link](http://x)" in completion
    assert "\\x1b[2J" in completion
