"""What a key's value becomes: the conversions that tables name, for any framework."""

import math
from pathlib import Path
from typing import Any

from runtime.migrate.rows import Converted, Fate, Theirs


def same(value: Any, _: Theirs) -> Converted:
    """The value as it is."""
    return Converted(Fate.RENAMED, value)


def built_in(_value: Any, _: Theirs) -> Converted:
    """Nothing to set: it is always so, or found out."""
    return Converted(Fate.DEFAULT)


def lost(_value: Any, _: Theirs) -> Converted:
    """Nothing here does it."""
    return Converted(Fate.LOST)


def decide(value: Any, _: Theirs) -> Converted:
    """The value as it is, for the user to look at."""
    return Converted(Fate.DECIDE, value)


_OFF = Converted(Fate.DEFAULT, note="off there, as it is here")
_ALIKE = Converted(Fate.DEFAULT, note="the same there, as it is here")


def unless(value: Any, _: Theirs, *off: Any) -> Converted:
    """Lost, unless the value is one under which it does nothing, or the only one here."""
    return _nothing_to_do(value) if _is_off(value, off) else Converted(Fate.LOST)


def decide_unless(value: Any, _: Theirs, *off: Any) -> Converted:
    """A decision of the user, unless the value is one under which it does nothing, or the only one here."""
    return _nothing_to_do(value) if _is_off(value, off) else Converted(Fate.DECIDE, is_written=False)


def _nothing_to_do(value: Any) -> Converted:
    """An optimizer that is the one here is not off."""
    return _OFF if value in (None, False, 0, -1, [], {}) else _ALIKE


def _is_off(value: Any, off: tuple[Any, ...]) -> bool:
    return value is None or any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in off)


def unless_on(value: Any, _: Theirs) -> Converted:
    """A block that is lost if it is enabled."""
    return Converted(Fate.LOST) if _is_on(value) else _OFF


def decide_if_on(value: Any, _: Theirs) -> Converted:
    """A block that needs a decision if it is enabled."""
    return Converted(Fate.DECIDE, is_written=False) if _is_on(value) else _OFF


def _is_on(block: Any) -> bool:
    return isinstance(block, dict) and bool(block.get("enabled", block.get("enable", False)))


def only(value: Any, _: Theirs, *allowed: Any) -> Converted:
    """The value if it is allowed here, otherwise a decision."""
    return Converted(Fate.RENAMED, value) if value in allowed else Converted(Fate.DECIDE, is_written=False)


def pick(value: Any, _: Theirs, words: dict[Any, Any], otherwise: Any = None) -> Converted:
    """Another word for the same; `otherwise`, if any, is what is written for a word without one."""
    if value in words:
        return Converted(Fate.RENAMED, words[value])
    return Converted(Fate.DECIDE, otherwise, is_written=otherwise is not None)


_NULL = Converted(Fate.DEFAULT, note="null there; the default here")


def if_set(value: Any, _: Theirs) -> Converted:
    """The value, unless it is null: then the default here."""
    return _NULL if value is None else Converted(Fate.RENAMED, value)


def if_positive(value: Any, _: Theirs) -> Converted:
    """A number above 0; null in place of others, which switch it off there."""
    return Converted(Fate.RENAMED, value if isinstance(value, int | float) and value > 0 else None)


def zero_if_off(value: Any, _: Theirs) -> Converted:
    """A number above 0; 0 in place of others, which switch it off there."""
    return Converted(Fate.RENAMED, value if isinstance(value, int) and value > 0 else 0)


def seconds(value: Any, _: Theirs) -> Converted:
    """Seconds of a time DD:HH:MM:SS; null where there is none."""
    parts = str(value).split(":")
    if value is None:
        return _NULL
    if len(parts) != 4 or not all(part.strip().isdigit() for part in parts):
        return Converted(Fate.DECIDE, is_written=False)
    days, hours, minutes, rest = map(int, parts)
    return Converted(Fate.RENAMED, float(((days * 24 + hours) * 60 + minutes) * 60 + rest))


def whole(value: Any, _: Theirs) -> Converted:
    """A number of epochs or steps as a whole number, rounded up."""
    return Converted(Fate.RENAMED, max(1, math.ceil(value)))


def local_model(value: Any, _: Theirs) -> Converted:
    """The directory of a model; a name of the hub must be downloaded."""
    if value is None or Path(value).expanduser().is_dir() or str(value).startswith(("/", "./", "../", "~")):
        return Converted(Fate.RENAMED, value) if value is not None else Converted(Fate.DECIDE, is_written=False)
    return Converted(
        Fate.DECIDE,
        value,
        f"models are not downloaded: run `hf download {value} --local-dir {value}` where you start evenstep, or give "
        "another directory",
    )


def same_as(value: Any, theirs: Theirs, path: str) -> Converted:
    """Nothing to set if it is the value of another key there, or null."""
    return Converted(Fate.DEFAULT if value in (None, theirs.get(path)) else Fate.DECIDE, is_written=False)


def listed(value: Any, _: Theirs) -> Converted:
    """A list of values; one value is a list of one, null an empty one."""
    return Converted(Fate.RENAMED, [] if value is None else value if isinstance(value, list) else [value])


def joined(value: Any, _: Theirs) -> Converted:
    """Several nodes are a Ray cluster that is there already."""
    several = isinstance(value, int) and value > 1
    return Converted(Fate.RENAMED, "auto") if several else Converted(Fate.DEFAULT)


def top_k_if_set(value: Any, _: Theirs) -> Converted:
    """`top_k` unless it is null; 0, which keeps all tokens, in place of a negative one."""
    return _NULL if value is None else Converted(Fate.RENAMED, max(0, value))


def all_samples(value: Any, _: Theirs) -> Converted:
    """Every rollout is kept if there is a folder for them."""
    return Converted(Fate.DEFAULT) if value is None else Converted(Fate.RENAMED, "all")


def jinja_file(value: Any, _: Theirs) -> Converted:
    """A chat template in a file; the folder of a tokenizer is none."""
    if value is None:
        return _NULL
    is_file = str(value).endswith((".jinja", ".jinja2", ".j2"))
    return Converted(Fate.RENAMED if is_file else Fate.DECIDE, value, is_written=is_file)


CONVERSIONS = (
    same, built_in, lost, decide, unless, decide_unless, unless_on, decide_if_on, only, pick, if_set, if_positive,
    zero_if_off, seconds, whole, local_model, same_as, listed, joined, top_k_if_set,
    all_samples, jinja_file,
)  # fmt: skip
