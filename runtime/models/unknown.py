"""Texts of which a tokenizer does not know all: it puts its unknown token there, and the model never sees what it was.

Tokenizers of bytes, and those that fall back to bytes, know every text.
"""

from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

_NAMED = 10
"""How many characters a message names."""


class UnknownText:
    """What a tokenizer does not know of the texts that it has encoded, one a row."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.rows = 0
        self._tokenizer, self._unknown = tokenizer, tokenizer.unk_token_id
        self._first = ""
        self._named: dict[str, None] = {}
        """Characters and, of a tokenizer of words, words."""
        self._known: set[str] = set()
        self._suspects: set[str] = set()
        """Characters that are known, or are not, where they stand alone."""

    def look(self, text: str, ids: Sequence[int], where: Callable[[], str]) -> None:
        """Take note of a row, by its tokens. A text may name the unknown token itself."""
        if self._unknown is None or self._unknown not in ids:
            return
        times = ids.count(self._unknown) - text.count(str(self._tokenizer.unk_token))
        if times <= 0:
            return
        self._first = self._first or where()
        self.rows += 1
        if len(self._named) < _NAMED and times > sum(text.count(each) for each in self._named):
            self._named |= dict.fromkeys(self._pieces(text))

    def look_at(self, text: str, where: Callable[[], str]) -> None:
        """The same for a row that is not encoded yet."""
        self.look(text, self._tokenizer.encode(text, add_special_tokens=False), where)

    def suspects(self, texts: Sequence[str | None]) -> list[int]:
        """The numbers of those texts that have a character which may be unknown: the others need not be encoded."""
        if self._unknown is None:
            return []
        for character in set().union(*(text for text in texts if text)) - self._known - self._suspects:
            (self._suspects if self._is_unknown(character) else self._known).add(character)
        if not self._suspects:
            return []
        return [number for number, text in enumerate(texts) if text and not self._suspects.isdisjoint(text)]

    def says(self) -> str:
        """What is unknown, and where the first is, to follow `3 prompts have`."""
        named = [*self._named]
        what = "characters" if all(len(each) == 1 for each in named) else "text"
        listed = ", ".join(f"{each!r:.40}" for each in named[:_NAMED])
        others = " and others" if len(named) >= _NAMED else ""
        return f"{what} that the model's tokenizer does not know: {listed}{others} (first in {self._first})"

    def _pieces(self, text: str) -> list[str]:
        """The parts of a text that are unknown: characters, or a word as a whole if it is one to the tokenizer."""
        if not self._tokenizer.is_fast:
            return [each for each in dict.fromkeys(text) if self._is_unknown(each)]
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        pieces: list[str] = []
        for token, (begin, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
            piece = text[begin:end]
            if token == self._unknown and piece != self._tokenizer.unk_token:
                unknown = [each for each in piece if self._is_unknown(each)]
                pieces += unknown if len(unknown) < len(piece) and unknown else [piece]
        return pieces

    def _is_unknown(self, character: str) -> bool:
        return self._unknown in self._tokenizer.encode(character, add_special_tokens=False)
