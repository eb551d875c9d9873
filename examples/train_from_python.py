"""A run from a script: settings in, result out. From the repository's root: python -m examples.train_from_python"""

from pathlib import Path

from runtime.launch.run import RunResult, run_training
from runtime.settings import load_settings


def main(output: Path, *overrides: str) -> RunResult:
    """Train the default run in a directory. Each override is as after --set."""
    return run_training(load_settings(Path("examples/default.yaml"), overrides), output)


if __name__ == "__main__":
    result = main(Path("runs/from_python"), "grpo.max_num_steps=20")
    print(result.outcome.status, result.summary["accuracy_after"], result.outcome.model)
