"""What control costs in the default run: the core, and all that lies between the pumps and the actors.

core: `core.apply` with the roster, the invariants, the metrics and the trace. control: all CPU time of the
controller's process while the run lasts, calls to the actors and waiting for them included. Both as shares of the wall
time of a step.
"""

from __future__ import annotations

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
    core, control = [], []
    print(f"the default run, {options.steps} steps")
    for number in range(options.runs):
        with tempfile.TemporaryDirectory() as name:
            summary = Path(name) / "summary.json"
            sets = [f"grpo.max_num_steps={options.steps}", "validation.every_steps=null", f"seed={number}"]
            flags = [part for change in sets for part in ("--set", change)]
            command = [str(Path(sys.executable).parent / "evenstep"), "train", "--output", f"{name}/run", *flags]
            subprocess.run([*command, "--summary", str(summary)], check=True, stdout=subprocess.DEVNULL)
            said = json.loads(summary.read_text(encoding="utf-8"))
        core.append(said["core_s"] / said["rl_s"])
        control.append(said["control_cpu_s"] / said["rl_s"])
        step_ms = said["rl_s"] / said["steps"] * 1e3
        print(f"  {step_ms:6.0f} ms a step: core {core[-1]:6.2%}, control {control[-1]:6.2%}", flush=True)
    print(f"  median: core {statistics.median(core):.2%}, control {statistics.median(control):.2%}")


if __name__ == "__main__":
    main()
