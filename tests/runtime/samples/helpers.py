"""Lines of samples.jsonl for the tests of what reads them."""

import json
from pathlib import Path
from typing import Any

from runtime.files import Json


def line_of(step: int, item: int = 0, text: str = "cba", **changes: Any) -> Json:
    """A sample of a trained rollout."""
    given: Json = {
        "kind": "sample",
        "step": step,
        "fate": "trained",
        "incarnation": 0,
        "prompt": 10 * step + item,
        "item": item,
        "where": f"sums.jsonl:{item + 1}",
        "sibling": 0,
        "siblings": 8,
        "prompt_text": f"question {item}",
        "turns": [{"role": "policy", "text": text}],
        "tokens": 4,
        "finish_reason": "stop",
        "reward": 0.5,
        "parts": {},
        "correct": False,
        "advantage": -0.25,
        "masked": False,
        "start_weight": step,
        "end_weight": step,
    }
    return given | changes


def write(folder: Path, *lines: Json) -> Path:
    """samples.jsonl in a folder."""
    folder.mkdir(exist_ok=True)
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="ascii")
    return path
