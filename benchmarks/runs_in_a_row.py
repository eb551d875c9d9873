"""Count how many of many short default runs on a busy machine do not complete, and time them.

    python benchmarks/runs_in_a_row.py --runs 200 --busy 2

Prints the last lines of every run that does not complete, and then exits with 1.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = [sys.executable, "-c", "from runtime.cli.entry import main; main()", "train"]
BUSY = [sys.executable, "-c", "while True: sum(range(10_000))"]
LIMIT_S = 600.0


def one_run(folder: Path, steps: int) -> tuple[str, float, str]:
    """Its status, seconds and output."""
    summary = folder / "summary.json"
    summary.unlink(missing_ok=True)
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as output:
        command = [*COMMAND, "--set", f"grpo.max_num_steps={steps}", "--output", f"{output}/run"]
        process = subprocess.run(
            [*command, "--summary", str(summary)], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    said = process.stdout + process.stderr
    status = json.loads(summary.read_text(encoding="utf-8"))["status"] if summary.exists() else "no summary"
    if status == "completed" and process.returncode != 0:
        status = f"completed with exit code {process.returncode}"
    return status, time.monotonic() - started_s, said


def main() -> int:
    """Run them, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--busy", type=int, default=2, help="other processes that compute meanwhile")
    parser.add_argument("--steps", type=int, default=5)
    given = parser.parse_args()
    busy = [subprocess.Popen(BUSY) for _ in range(given.busy)]
    others: list[str] = []
    seconds: list[float] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(1, given.runs + 1):
                status, took_s, said = one_run(Path(folder), given.steps)
                seconds.append(took_s)
                if status != "completed":
                    others.append(f"run {number}: {status}")
                    print("\n".join(said.splitlines()[-20:]), flush=True)
                if number % 10 == 0 or status != "completed":
                    print(
                        f"{number} runs: {number - len(others)} completed, {len(others)} did not; "
                        f"median {statistics.median(seconds):.1f} s",
                        flush=True,
                    )
    finally:
        for process in busy:
            process.kill()
            process.wait()
    print(f"{given.runs} runs with {given.busy} busy processes: {len(others)} did not complete {others}")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main())
