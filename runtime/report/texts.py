"""Texts of a trace, each kept once, printable, and only so much of each."""

from __future__ import annotations

from runtime.trace.show import printable

LONGEST = 2_000
"""Characters of one text that are kept."""
MOST = 5_000
"""Different texts that are kept."""
BEYOND = "(one of more different texts than a report keeps; evenstep trace shows it)"


class Texts:
    """Different texts, by number."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text."""
        shown = printable(str(text), widest=LONGEST)
        if shown not in self._numbers and len(self.kept) >= MOST:
            shown = BEYOND
        if shown not in self._numbers:
            self._numbers[shown] = len(self.kept)
            self.kept.append(shown)
        return self._numbers[shown]
