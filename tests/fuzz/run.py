"""Fuzz inputs of every kind, and print a table of what became of them: `python -m tests.fuzz.run`.

Each kind's inputs are taken in one process after another, under a limit of memory and a deadline per input. A defect is
an error that is no refusal, a traceback or "a defect" in what a command prints, a death, too much memory, or a hang.
"""

import argparse
import contextlib
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.kinds import KINDS, Kind, Refused, empty
from tests.fuzz.places import PLACES

DEADLINE_S = 60.0
"""For one input, on a busy machine."""
MEMORY_BYTES = 8 << 30
"""Of address space: what Python's packages map counts too."""
ACCEPTED, REFUSED, DEFECT, HANG = "accepted", "refused", "defect", "hang"


class Found(NamedTuple):
    """What became of one input."""

    kind: str
    case: str
    """A seed, or the name of a place."""
    outcome: str
    said: str


def made(kind: Kind, case: str, folder: Path) -> Path:
    """The input of a case, in an empty folder."""
    empty(folder)
    if case in PLACES:
        return PLACES[case](folder / kind.name)
    return kind.make(random.Random(int(case)), folder)


def _taken(name: str, case: str, folder: Path) -> Found:
    try:
        KINDS[name].take(made(KINDS[name], case, folder))
    except Refused as refused:
        return Found(name, case, REFUSED, str(refused))
    except BaseException:
        return Found(name, case, DEFECT, traceback.format_exc())
    return Found(name, case, ACCEPTED, "")


def _work(name: str, pipe: Connection, folder: Path) -> None:
    """A process that takes one case after another."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    os.chdir(folder)
    with (
        Path(os.devnull).open("w") as nothing,
        contextlib.redirect_stdout(nothing),
        contextlib.redirect_stderr(nothing),
    ):
        while case := pipe.recv():
            pipe.send(_taken(name, case, folder / "input"))


def fuzzed(name: str, cases: Sequence[str], deadline_s: float = DEADLINE_S) -> Iterator[Found]:
    """What became of each case of a kind, in order."""
    left = list(cases)
    while left:
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("fork").Process(target=_work, args=(name, theirs, Path(folder)))
            process.start()
            theirs.close()
            while left:
                ours.send(left[0])
                try:
                    found = ours.recv() if ours.poll(deadline_s) else None
                except EOFError:
                    process.join()
                    found = Found(name, left[0], DEFECT, f"its process died with exit code {process.exitcode}")
                yield found or Found(name, left[0], HANG, f"no answer for {deadline_s:g} s")
                left = left[1:]
                if found is None or process.exitcode is not None:
                    break
            process.kill()
            process.join()
            ours.close()


def table(found: Sequence[Found], seconds: dict[str, float]) -> str:
    """Kinds × outcomes."""
    columns = (REFUSED, ACCEPTED, DEFECT, HANG)
    lines = ["| kind | inputs | " + " | ".join(columns) + " | seconds |", "| --- |" + " ---: |" * (len(columns) + 2)]
    for kind in dict.fromkeys(each.kind for each in found):
        counts = Counter(each.outcome for each in found if each.kind == kind)
        cells = " | ".join(str(counts[column]) for column in columns)
        lines.append(f"| {kind} | {counts.total()} | {cells} | {seconds[kind]:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=500, help="seeds of each kind, beside the odd files")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="only this one; repeatable")
    given = parser.parse_args()
    found: list[Found] = []
    seconds: dict[str, float] = {}
    for kind in given.kind or list(KINDS):
        began_s = time.monotonic()
        for each in fuzzed(kind, [*PLACES, *(str(given.first + number) for number in range(given.inputs))]):
            found.append(each)
            if each.outcome in (DEFECT, HANG):
                print(f"{each.kind} {each.case}: {each.outcome}\n{each.said}", flush=True)
        seconds[kind] = time.monotonic() - began_s
    print(table(found, seconds))
    sys.exit(any(each.outcome in (DEFECT, HANG) for each in found))


if __name__ == "__main__":
    main()
