"""A reward that is a penalty: smollm2_math.yaml weighs it against being right."""

from typing import Any


def finished(completion: str, row: dict[str, Any]) -> float:
    """−1 for a completion that the length limit cut off, else 0."""
    return -1.0 if row["finish_reason"] == "length" else 0.0
