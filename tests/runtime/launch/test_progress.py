"""How far a long start is: a bar on a terminal, a line now and then elsewhere."""

import io
from typing import Any

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


def line(**changes: Any) -> str:
    record = {
        "step": 123_456, "wall_s": 98_765.4, "unfiltered_reward": -12.345, "entropy": 10.5, "selected": 512,
        "zero_variance_fraction": 0.25, "charged": 0, "trained_tokens": 900, "filtered_prompt_groups": 3,
        "staleness_mean": None, "generation_tokens_per_s": 4e5, "trainer_idle_share": 0.5,
    }  # fmt: skip
    return progress.step_line(record | changes, 200_000)


def test_a_step_s_line_has_the_entropy_beside_the_reward_where_a_terminal_shows_it() -> None:
    shown = "reward -12.35  entropy 10.50  zero variance 0.25"
    assert shown in line()[:100]
    assert "  entropy –  " in line(trained_tokens=0, entropy=0.0)
    assert "  entropy –  " in line(trained_tokens=None, entropy=None)
