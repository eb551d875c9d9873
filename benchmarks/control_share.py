"""Measure the cost of control in the default run, as shares of a step's wall time.

core: CPU time of `core.apply`, with the roster, the invariants, and the records for metrics and trace.
control: CPU time of everything else in the controller's process except the thread that writes the trace: the pumps,
calls and their answers, metrics, messages to the process that started the run, and Ray's threads (about 1% when idle).
process: CPU time of the whole process, from the first rollout to the end of the run.

Work that calls cause in other processes is not counted. On a busy machine steps take longer, so shares are smaller; the
milliseconds show that.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Run the default run a few times and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    shares: dict[str, list[float]] = {"core": [], "control": [], "process": []}
    print(f"the default run, {options.steps} steps")
    for number in range(options.runs):
        with tempfile.TemporaryDirectory() as name:
            summary = Path(name) / "summary.json"
            sets = [f"grpo.max_num_steps={options.steps}", "validation.every_steps=null", f"seed={number}"]
            flags = [part for change in sets for part in ("--set", change)]
            command = [str(Path(sys.executable).parent / "evenstep"), "train", "--output", f"{name}/run", *flags]
            subprocess.run([*command, "--summary", str(summary)], check=True, stdout=subprocess.DEVNULL)
            found = json.loads(summary.read_text(encoding="utf-8"))
        core_s, process_s, wall_s = found["core_s"], found["controller_cpu_s"], found["rl_s"]
        cpu_s = {"core": core_s, "control": process_s - core_s - found["trace_cpu_s"], "process": process_s}
        for name, of in shares.items():
            of.append(cpu_s[name] / wall_s)
        step_ms = wall_s / found["steps"] * 1e3
        line = ", ".join(f"{name} {of[-1]:6.2%} ({of[-1] * step_ms:.1f} ms)" for name, of in shares.items())
        print(f"  {step_ms:6.0f} ms a step: {line}", flush=True)
    print("  median: " + ", ".join(f"{name} {statistics.median(of):.2%}" for name, of in shares.items()))


if __name__ == "__main__":
    main()
