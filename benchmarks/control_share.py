"""What control costs in the default run: the core, and all that lies between the pumps and the actors.

core: CPU time of `core.apply`, with the roster, the invariants, and what is put aside for metrics and trace.
control: CPU time of all else in the controller's process but the thread that writes the trace: the pumps, making calls
and taking their answers, metrics, messages to the process that started the run, and Ray's own threads, busy or not (an
idle actor's take about 1% of the time).
process: all of it, from the first rollout to the end of the run.

Work that calls cause in other processes counts there. All are shares of the wall time of a step, so a machine with
other work, whose steps take longer, shows smaller shares, and a core that is shared larger times: milliseconds too.
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
    core, control, process = [], [], []
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
        process.append(said["controller_cpu_s"] / said["rl_s"])
        control.append(process[-1] - core[-1] - said["trace_cpu_s"] / said["rl_s"])
        step_ms = said["rl_s"] / said["steps"] * 1e3
        shares = ((name, of[-1]) for name, of in (("core", core), ("control", control), ("process", process)))
        told = ", ".join(f"{name} {share:6.2%} ({share * step_ms:.1f} ms)" for name, share in shares)
        print(f"  {step_ms:6.0f} ms a step: {told}", flush=True)
    medians = (
        (name, statistics.median(of)) for name, of in (("core", core), ("control", control), ("process", process))
    )
    print("  median: " + ", ".join(f"{name} {share:.2%}" for name, share in medians))


if __name__ == "__main__":
    main()
