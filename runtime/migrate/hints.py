"""What is said of another framework's key in a configuration, from the tables of `evenstep migrate`."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from runtime.migrate.frameworks import Framework, table_of
from runtime.migrate.rows import Row

_PLACES = 3
"""How many new places of a block's keys are named, and meanings of a name."""


def foreign_keys() -> Mapping[str, str]:
    """A sentence for each key, by dotted path, and by `*.` and the last key, unless many keys are so called.
    `*` is what is said of a file with several of them. `**.` and a key without blocks that has another name here is
    said even where evenstep has a key of that name elsewhere.

    Where two frameworks have the same path, NeMo-RL's counts, whose names evenstep has.
    """
    said: dict[str, str] = {
        "*": "`evenstep migrate FILE -o run.yaml` translates the whole file",
        "defaults": "`evenstep migrate` reads a chain of files and writes one",
    }
    by_last: defaultdict[str, list[_Key]] = defaultdict(list)
    for framework in Framework:
        table = table_of(framework)
        for block, places in _blocks(table.rows).items():
            said.setdefault(block, _moved(table.framework, block, places))
        rows_of: defaultdict[str, list[Row]] = defaultdict(list)
        for row in table.rows:
            rows_of[row.theirs].append(row)
        for theirs, rows in rows_of.items():
            if theirs == rows[0].ours:
                continue
            key = _Key(table.framework, theirs, tuple(rows))
            by_last[key.last].append(key)
            said.setdefault(theirs, key.sentence(key.last))
    for last, keys in by_last.items():
        meanings = list({(key.rows[0].ours, key.rows[0].note): key for key in keys}.values())
        if len(meanings) == 1:
            said[f"*.{last}"] = said[keys[0].theirs]
        elif len(meanings) <= _PLACES:
            said[f"*.{last}"] = "; ".join(key.sentence(key.within_its_block) for key in meanings)
        ours = keys[0].rows[0].ours
        if len(meanings) == 1 and keys[0].theirs == last and ours is not None and ours.rpartition(".")[2] != last:
            said[f"**.{last}"] = said[last]
    return said


class _Key(NamedTuple):
    """A framework's key with all its rows: the first says what it is here, the others what it decides as well."""

    framework: str
    theirs: str
    rows: tuple[Row, ...]

    @property
    def last(self) -> str:
        return self.theirs.rpartition(".")[2]

    @property
    def within_its_block(self) -> str:
        """As `rollout.n`."""
        return ".".join(self.theirs.split(".")[-2:])

    def sentence(self, name: str) -> str:
        first, *others = self.rows
        if first.ours is not None:
            more = " and ".join(row.ours for row in others if row.ours is not None)
            here = f"is {first.ours} here{f', and decides {more}' if more else ''}"
        else:
            here = (
                "needs no key here"
                if first.conversion.endswith(("built_in", "unless(true)"))
                else "has no counterpart here"
            )
        return f"{self.framework}'s {name} {here}{f': {first.note}' if first.note else ''}"


def _blocks(rows: Sequence[Row]) -> dict[str, list[str]]:
    """The new places of the keys below each block."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for row in rows:
        parts = row.theirs.split(".")
        for end in range(1, len(parts)):
            places = found[".".join(parts[:end])]
            if row.ours is not None and row.ours not in places:
                places.append(row.ours)
    return found


def _moved(framework: str, block: str, places: Sequence[str]) -> str:
    named = ", ".join(places[:_PLACES])
    more = ", …" if len(places) > _PLACES else ""
    where = f"its keys are elsewhere here ({named}{more}); " if places else ""
    return f"{framework} has the block {block}: {where}`evenstep migrate` translates such a file"
