"""The example that starts a run from a script, which docs/training.md shows."""

import re
from pathlib import Path

from examples.train_from_python import main
from tests.docs.test_documents import ROOT

EXAMPLE = ROOT / "examples/train_from_python.py"


def test_the_page_shows_the_example() -> None:
    page = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- file: examples/train_from_python.py -->\n```python\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    assert shown[1] == EXAMPLE.read_text(encoding="utf-8")


def test_a_script_trains_and_gets_the_result(tmp_path: Path) -> None:
    result = main(tmp_path / "run", "grpo.max_num_steps=2", "data.validation_size=16")
    assert result.outcome.status == "completed", result.outcome.error
    assert result.summary["steps"] == 2
    assert 0 <= (result.summary["accuracy_after"] or 0.0) <= 1
    assert result.outcome.model is not None
    assert (result.outcome.model / "model.safetensors").is_file()
