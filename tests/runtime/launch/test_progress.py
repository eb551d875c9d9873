"""How far a long start is: a bar on a terminal, a line now and then elsewhere."""

import io

import pytest
from rich.console import Console

from runtime.control.messages import Notice, Progress
from runtime.launch import progress

PARTS = [Progress("reading big.jsonl", read, 10_000_000) for read in (0, 4_000_000, 9_000_000)]


def shown(*, terminal: bool, after: str) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None, legacy_windows=False)
    with progress.open_progress(console, None) as listener:
        for part in PARTS:
            listener(part)
        listener(Notice(after))
    written = console.file
    assert isinstance(written, io.StringIO)
    return written.getvalue()


def test_a_terminal_shows_a_bar_with_rows_read_and_all_rows() -> None:
    text = shown(terminal=True, after="starting Ray")
    assert "reading big.jsonl" in text
    assert "9,000,000 of 10,000,000" in text
    assert "━" in text
    assert "starting Ray" in text


def test_a_log_gets_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(terminal=False, after="starting Ray") == "starting Ray\n"
    monkeypatch.setattr(progress, "PROGRESS_S", -1.0)
    assert "reading big.jsonl: 4,000,000 of 10,000,000\n" in shown(terminal=False, after="starting Ray")


def test_a_notice_holds_no_control_code_of_a_users_text() -> None:
    says = "the chat template refuses: \x1b[31mred\u202e"
    for terminal in (False, True):
        assert r"refuses: \x1b[31mred\u202e" in shown(terminal=terminal, after=says)
