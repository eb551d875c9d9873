"""The twin in Promela (evenstep.pml and own_moves.pml), run by SPIN."""

import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from specs.evidence.twins.counts import Counts, ToolFailed, run_tool
from specs.evidence.twins.parameters import Parameters, header

MAIN = "evenstep.pml"
MODEL = {name: Path(__file__).with_name(name).read_text(encoding="utf-8") for name in (MAIN, "own_moves.pml")}
"""The files of the model, by name."""
COMPILER = ("gcc", "-O1", "-w", "-DSAFETY", "-DNOREDUCE")
"""No partial-order reduction: every state and transition is wanted. -w: pan.c is not warning-free."""
DEPTH, HASH_BITS = 100_000, 20
"""The longest path that pan follows, atomic steps included, and the size of its hash table; neither bounds what it
counts without an error."""
PRINTED = {what: re.compile(rf"^\s*(\d+) {what}", re.MULTILINE) for what in ("states, stored", "transitions")}


def missing() -> str | None:
    """What to install if SPIN cannot run here; None if it can."""
    absent = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
    if not absent:
        return None
    return f"SPIN cannot run: {' and '.join(absent)} not found. Install with: apt-get install spin gcc"


def count(known: Parameters, model: Mapping[str, str] = MODEL) -> Counts:
    """All states and transitions of a run; `model` is its files. Raises ToolFailed.

    SPIN starts from a state before Begin and counts the transition out of it; what it prints as "transitions
    (= stored+matched)" has the visit of that first state as well. So it prints one state and two transitions more than
    there are from the state after Begin on.
    """
    with tempfile.TemporaryDirectory(prefix="evenstep-spin-") as directory:
        where = Path(directory)
        for name, text in model.items():
            (where / name).write_text(text, encoding="utf-8")
        (where / "parameters.h").write_text(header(known), encoding="utf-8")
        run_tool("SPIN", ["spin", "-a", MAIN], where)
        run_tool("SPIN", [*COMPILER, "-o", "pan", "pan.c"], where)
        printed, seconds = run_tool("SPIN", ["./pan", f"-m{DEPTH}", f"-w{HASH_BITS}", "-n"], where)
    found = {what: pattern.search(printed) for what, pattern in PRINTED.items()}
    stored, transitions = found["states, stored"], found["transitions"]
    if stored is None or transitions is None or "errors: 0" not in printed or "max search depth too small" in printed:
        raise ToolFailed(f"SPIN: pan did not search the whole model without an error; it printed:\n{printed}")
    return Counts(int(stored[1]) - 1, int(transitions[1]) - 2, seconds)
