"""What is said of another framework's key in a configuration, from the tables of `evenstep migrate`."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from runtime.migrate.frameworks import Framework, table_of
from runtime.migrate.rows import Row

_PLACES = 3
"""How many new places of a block's keys are named."""


def foreign_keys() -> Mapping[str, str]:
    """A sentence for each key, by dotted path, and by `*.` and the last key where all that are so called agree.
    `*` is what is said of a file with several of them. `**.` and a key without blocks that has another name here is
    said even where evenstep has a key of that name elsewhere.

    Where two frameworks have the same path, NeMo-RL's counts, whose names evenstep has.
    """
    said: dict[str, str] = {
        "*": "`evenstep migrate FILE -o run.yaml` translates the whole file",
        "defaults": "`evenstep migrate` reads a chain of files and writes one",
    }
    by_last: defaultdict[str, list[Row]] = defaultdict(list)
    for framework in Framework:
        table = table_of(framework)
        for block, places in _blocks(table.rows).items():
            said.setdefault(block, _moved(table.framework, block, places))
        for row in table.rows:
            if row.theirs == row.ours:
                continue
            by_last[row.theirs.rpartition(".")[2]].append(row)
            said.setdefault(row.theirs, _sentence(table.framework, row))
    for last, rows in by_last.items():
        if len({(row.ours, row.note) for row in rows}) == 1:
            said[f"*.{last}"] = said[rows[0].theirs]
            if rows[0].theirs == last and rows[0].ours is not None and rows[0].ours.rpartition(".")[2] != last:
                said[f"**.{last}"] = said[last]
    return said


def _sentence(framework: str, row: Row) -> str:
    last = row.theirs.rpartition(".")[2]
    if row.ours is not None:
        here = f"is {row.ours} here"
    else:
        here = "needs no key here" if row.conversion.endswith("built_in") else "has no counterpart here"
    return f"{framework}'s {last} {here}{f': {row.note}' if row.note else ''}"


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
