"""What keys may hold: mappings that a file gives back as they were, and times that timers take."""

import math
from typing import Annotated, Any

from pydantic import AfterValidator, Field

LONGEST_S = 1_000_000_000
"""Of any time in the configuration: 31 years. Timers of Python and of the system overflow some way above it."""
Deadline = Annotated[float, Field(gt=0, le=LONGEST_S)]
"""In seconds. Those of the core are waited for on event loops, which take any."""


def _check(place: str, value: object) -> None:
    """Raise ValueError for a value that differs once it was written as JSON or YAML, and read again."""
    match value:
        case dict():
            for key, each in value.items():
                if not isinstance(key, str):
                    raise ValueError(f'{place} has the key {key!s:.80}, and keys are texts: quote it, "{key!s:.80}"')
                _check(f"{place}.{key}" if place else key, each)
        case list():
            for number, each in enumerate(value):
                _check(f"{place}[{number}]", each)
        case float() if not math.isfinite(value):
            raise ValueError(f"{place} is {value}, which JSON has no form for: give a finite number, or a text")
        case None | str() | int() | float():  # a bool is an int
            pass
        case bytes() | set() | tuple():
            raise ValueError(
                f"{place} is {value!r:.80}, a {type(value).__name__}: options are sent as JSON, so write it as texts, "
                "numbers, lists and mappings"
            )
        case _:  # a date, or one with a time
            kind, text = type(value).__name__, f"{value!s:.80}"
            raise ValueError(f'{place} is {text}, which YAML reads as a {kind}: quote it, "{text}", to have a text')


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    _check("", options)
    return options


Options = Annotated[dict[str, Any], AfterValidator(_plain)]
"""Null, booleans, whole and finite numbers, texts, and lists and mappings of them: what a resume reads as it was."""
