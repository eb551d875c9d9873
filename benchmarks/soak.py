"""Whether the processes of a long run stay as they are: memory, threads, file descriptors, and files of the run.

    python benchmarks/soak.py --minutes 60 --set "data.delay={median_s: 0.5, sigma: 0.2, max_s: 2.0}"

Looks at every process of one run every ten seconds, and prints a table: each figure as it was after the first ten
minutes and as it is at the end, medians of six looks. What grows by more than `--most` (a share) and by more than a few
units is marked, and the command then exits with 1. The trace, metrics.jsonl and samples.jsonl grow by design, so files
are counted, not measured. Memory is anonymous memory: files that are mapped, such as libraries, count for less the more
other processes map them too.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runtime.launch.processes import PROC, process_tree
from runtime.launch.supervision.roles import title_of

COMMAND = [sys.executable, "-u", "-c", "from runtime.cli.entry import main; main()", "train"]
LONG = ["grpo.max_num_steps=10000000", "grpo.max_num_epochs=1000000", "validation.every_steps=500"]
"""More than any soak trains. Validations, because they are a part of long runs."""
EVERY_S = 10.0
LOOKS = 6
"""Of which a figure is the median."""
UNITS = {"MiB": 8.0, "threads": 8.0, "descriptors": 8.0, "files": 4.0}
"""What is looked at, and what a process may gain in any case: Ray's pools of threads fill late."""


@dataclass(frozen=True, slots=True)
class Growth:
    """One figure of one process, after the first minutes and at the end."""

    who: str
    unit: str
    early: float
    late: float

    def is_too_much(self, most: float) -> bool:
        """It has grown by more than the share and by more than its units."""
        gain = self.late - self.early
        return gain > most * self.early and gain > UNITS[self.unit]


def look(root: int, output: Path) -> dict[tuple[str, str], float]:
    """Every figure now, by process (its title and pid) and unit."""
    figures: dict[tuple[str, str], float] = {}
    for pid in process_tree(root):
        title = title_of(pid).split("/")[-1][:40] or "?"
        who = f"{'the driver' if pid == root else title.partition('.')[0]} ({pid})"
        with suppress(OSError):  # it has ended meanwhile
            rollup = (PROC / str(pid) / "smaps_rollup").read_text()
            memory_kib = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Anonymous:"))
            figures[who, "threads"] = len(list((PROC / str(pid) / "task").iterdir()))
            figures[who, "descriptors"] = len(list((PROC / str(pid) / "fd").iterdir()))
            figures[who, "MiB"] = memory_kib / 1024
    figures["the run's directory", "files"] = sum(1 for path in output.rglob("*") if path.is_file())
    return figures


def growths(looks: list[dict[tuple[str, str], float]], warm: int) -> list[Growth]:
    """Of every process that was there after the first `warm` looks, with its figures then and at the end."""
    series: dict[tuple[str, str], list[float]] = defaultdict(list)
    for each in looks[warm:]:
        for key, value in each.items():
            series[key].append(value)
    long_lived = {key: values for key, values in series.items() if len(values) > (len(looks) - warm) // 2}
    return [
        Growth(who, unit, statistics.median(values[:LOOKS]), statistics.median(values[-LOOKS:]))
        for (who, unit), values in sorted(long_lived.items())
    ]


def main() -> int:
    """Run, look, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--warm", type=float, default=10.0, help="minutes at the start that do not count")
    parser.add_argument("--most", type=float, default=0.03, help="the share by which a figure may grow")
    parser.add_argument("--set", action="append", default=[], help="a key of the run, as for evenstep train")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        output, summary = Path(folder) / "run", Path(folder) / "summary.json"
        command = [*COMMAND, "--output", str(output), "--summary", str(summary)]
        for each in [*LONG, f"checkpointing.max_wall_s={60.0 * given.minutes}", *given.set]:
            command += ["--set", each]
        with (Path(folder) / "log").open("w+") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
            looks = []
            while process.poll() is None:
                time.sleep(EVERY_S)
                looks.append(look(process.pid, output))
            log.seek(0)
            print(*log.read().splitlines()[-12:], sep="\n")
    looks = looks[: -max(1, round(60.0 / EVERY_S))]  # the last minute may be that of its end
    found = growths(looks, round(60.0 * given.warm / EVERY_S))
    print(f"\n{len(looks)} looks; after {given.warm:g} minutes, at the end, and what was gained:")
    bad = [each for each in found if each.is_too_much(given.most)]
    for each in found:
        mark = "  <-- grows" if each in bad else ""
        gained = each.late - each.early
        print(f"  {each.who:48} {each.unit:12} {each.early:10.1f} {each.late:10.1f} {gained:+8.1f}{mark}")
    print(f"{len(bad)} of {len(found)} figures grow")
    return int(bool(bad) or not found)


if __name__ == "__main__":
    sys.exit(main())
