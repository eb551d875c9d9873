"""What the pages on tasks and environments show trains as written, but for the number of steps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.models.smollm2 import ModelPackageMissing, smollm2_directory
from tests.docs.test_environment_documents import SHOWN
from tests.docs.test_task_documents import FILES

PAGES = {"tasks": FILES, "environments": {name: text for name, _, text in SHOWN}}
EXTRAS = {name: extra for name, extra, _ in SHOWN if extra}
STEPS = 2


@pytest.mark.parametrize(
    ("page", "name"),
    [("tasks", "graded.yaml"), *(("environments", name) for name, _, _ in SHOWN if name.endswith(".yaml"))],
)
def test_a_configuration_of_the_documents_trains(page: str, name: str, tmp_path: Path) -> None:
    if name in EXTRAS:
        pytest.importorskip(EXTRAS[name], reason=f"needs the extra {EXTRAS[name].replace('_', '-')}")
    if "smollm2" in PAGES[page][name]:
        try:
            smollm2_directory()
        except ModelPackageMissing as missing:
            pytest.skip(str(missing))
    for shown, text in PAGES[page].items():
        (tmp_path / shown).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", "from runtime.cli.entry import main; main()", "train", name,
         "--output", "run", "--set", f"grpo.max_num_steps={STEPS}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sum(record["kind"] == "step" for record in records) == STEPS
    assert (tmp_path / "run/model/final/model.safetensors").exists()
    if name == "graded.yaml":
        parts = next(record for record in records if record["kind"] == "step")["reward_parts"]
        assert set(parts) == {"right", "right/capital", "right/continent", "length"}
        assert parts["length"] < 0
