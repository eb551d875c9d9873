"""Measure how soon a run on ten million JSON lines starts, and how much memory its driver takes.

The driver is the process of `evenstep train`. Its first start reads every line and keeps an index; a second start finds
the index. The clock runs from the command to the first training rollout's start (after the validation before the run),
and to the first prompt group that is finished.

    python benchmarks/large_data.py --folder /tmp/large     # 1 GB for the file, 160 MB for its index
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import yaml

from fsm.effects import StartRollout
from fsm.events import GroupFinished
from runtime.trace.reader import open_trace
from runtime.trace.records import TransitionRecord

_LINES_AT_A_TIME = 10_000
COMMAND = "from runtime.cli.entry import main; main()"


def write_sums(path: Path, lines: int) -> None:
    """A file of different additions."""
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, lines, _LINES_AT_A_TIME):
            for number in range(start, min(start + _LINES_AT_A_TIME, lines)):
                other = number * 7919 % 100_003
                prompt, answer = f"{number} + {other} =", number + other
                file.write(f'{{"id": {number}, "prompt": "{prompt}", "answer": "{answer}", "from": "additions"}}\n')


def run(folder: Path, data: Path, name: str, shuffle: bool) -> None:
    """Train two steps, and print when the first rollout began and what the driver took."""
    config = {
        "data": {"task": {"name": "jsonl", "path": str(data)}, "validation_size": 64, "shuffle": shuffle},
        "grpo": {"num_prompts_per_step": 4, "num_generations_per_prompt": 8, "max_num_steps": 2},
        "logger": {"plot": False},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    output = folder / f"{name}-{time.strftime('%H%M%S')}"
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    began_s = time.time()
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "train", str(folder / f"{name}.yaml"), "--output", str(output)], env=environment
    )
    peak_bytes = 0
    while process.poll() is None:
        peak_bytes = max(peak_bytes, peak_of(process.pid))
        time.sleep(0.1)
    trace = [record for record in open_trace(output).records() if isinstance(record, TransitionRecord)]
    opened = next(
        record for record in trace if any(isinstance(effect, StartRollout) for effect in record.transition.effects)
    )
    finished = next(record for record in trace if isinstance(record.transition.event, GroupFinished))
    print(
        f"{name}: exit code {process.returncode}; first rollout after {opened.unix_s - began_s:.1f} s, first group "
        f"finished after {finished.unix_s - began_s:.1f} s; driver's peak memory {peak_bytes / 1e6:.0f} MB"
    )


def peak_of(pid: int) -> int:
    """The most memory that a process has had, in bytes; 0 if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


def main() -> None:
    """Make the file if it is not there, and start two runs on it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("/tmp/large"), help="for the file, its index and the runs")
    parser.add_argument("--lines", type=int, default=10_000_000)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    data = arguments.folder / f"sums-{arguments.lines}.jsonl"
    if not data.exists():
        began_s = time.monotonic()
        write_sums(data, arguments.lines)
        print(f"wrote {data} ({data.stat().st_size / 1e9:.2f} GB) in {time.monotonic() - began_s:.0f} s")
    os.utime(data)  # another time: the first start finds no index
    run(arguments.folder, data, "first start", shuffle=False)
    run(arguments.folder, data, "second start, shuffled", shuffle=True)


if __name__ == "__main__":
    main()
