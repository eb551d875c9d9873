"""Damage to files, the same for the same seed: bytes, lines, and values of documents."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import yaml

_RAW = "@raw{}@"
"""Stands in a dumped document for text that no dumper writes."""
RAW = (
    "1e400", "-1e400", ".nan", "NaN", ".inf", "Infinity", "9" * 5000, "0x" + "f" * 4000, "2026-13-45", "2026-01-01",
    "!!int abc", "!!bool nope", "!!timestamp never", "!!python/object/apply:os.system [true]", "!!binary 5",
    '"\\ud800"', '"\\u0000"', "*nowhere", "&a [*a]", "{? [1, 2] : 3}", "<<: 5", "1:2:3", "0o17", "=", "~",
    "[" * 2000 + "]" * 2000, "{a: " * 400 + "1" + "}" * 400, '"' + "x" * 100_000 + '"',
)  # fmt: skip
"""Values as text, in YAML; some of them are JSON too."""
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**200, -(2**70), 0.5, -0.0, 1e-320, 1.7e308, "", " ", "null", "1",
    "nan", "\x1b[2J", "../../etc/passwd", "/dev/zero", "x:y", "os:system", "a\nb", "ä" * 300, [], {}, [[]], [None],
    {"": None}, {"name": "custom"}, {"name": None}, [1, "a", None, {}], {"a": {"b": {"c": []}}}, list(range(50)),
)  # fmt: skip
BYTES = (
    b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\t", b"\r", b"{", b"}", b"[", b'"', b"\n\n", b": ", b"- ", b"\xef\xbb\xbf",
    b"\xe2\x80\xa8", b"%", b"&a ", b"*a", b"NaN", b"1e400", b"9" * 5000,
)  # fmt: skip


def damaged(text: bytes, chance: random.Random) -> bytes:
    """A file with one to three faults in its bytes and lines."""
    for _ in range(chance.randint(1, 3)):
        start = chance.randrange(len(text) + 1)
        stop = min(len(text), start + chance.choice([1, 1, 3, 20, 400]))
        lines = text.split(b"\n")
        match chance.randrange(8):
            case 0:
                text = text[:start]
            case 1:
                text = text[:start] + text[stop:]
            case 2:
                text = text[:start] + chance.choice(BYTES) + text[start:]
            case 3:
                text = text[:start] + bytes(chance.randrange(256) for _ in range(stop - start)) + text[stop:]
            case 4:
                text = text[:stop] + text[start:]
            case 5:
                chance.shuffle(lines)
                text = b"\n".join(lines)
            case 6:
                line = chance.randrange(len(lines))
                text = b"\n".join([*lines[:line], lines[line], *lines[line:]])
            case _:
                line = chance.randrange(len(lines))
                text = b"\n".join([*lines[:line], *lines[line + 1 :]])
    return text


def changed(document: Any, chance: random.Random) -> Any:
    """A document with one to three keys or values that are odd. Texts of RAW are marked; `as_yaml` puts them in."""
    document = copy.deepcopy(document)
    for _ in range(chance.randint(1, 3)):
        places = list(_places(document))
        if not places:
            return _odd(chance)
        block, key = chance.choice(places)
        match chance.randrange(6):
            case 0:
                del block[key]
            case 1 if isinstance(block, dict):
                block[chance.choice(["", "x", "name", "0", str(key).upper(), f"{key} "])] = block.pop(key)
            case 2 if isinstance(block, dict):
                block[chance.choice(["x", "name", "target", "options"])] = _odd(chance)
            case 3:
                other, their = chance.choice(places)
                block[key] = copy.deepcopy(other[their])
            case _:
                block[key] = _odd(chance)
    return document


def _odd(chance: random.Random) -> Any:
    return copy.deepcopy(chance.choice([*ODD, *(_RAW.format(number) for number in range(len(RAW)))]))


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every block with each of its keys."""
    inside = list(document.items() if isinstance(document, dict) else enumerate(document)) if document else []
    for key, value in inside:
        yield document, key
        if isinstance(value, dict | list):
            yield from _places(value)


def as_yaml(document: Any) -> bytes:
    return _with_raw(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=10_000))


def as_json(document: Any) -> bytes:
    return _with_raw(json.dumps(document).replace('"@raw', "@raw").replace('@"', "@"))


def _with_raw(text: str) -> bytes:
    for number, raw in enumerate(RAW):
        marked = _RAW.format(number)
        text = text.replace(f"'{marked}'", raw).replace(f'"{marked}"', raw).replace(marked, raw)
    return text.encode("utf-8", "surrogatepass")


def bomb(levels: int = 30) -> bytes:
    """ "Billion laughs": 9 ** levels values in a few hundred bytes."""
    lines = ["grpo: &l0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"x{each}: &l{each} [{', '.join([f'*l{each - 1}'] * 9)}]" for each in range(1, levels)]
    return "\n".join(lines).encode()


def merge_bomb(levels: int = 30) -> bytes:
    """The same by merged mappings."""
    lines = ["grpo: &m0 {a: 1}"]
    lines += [f"x{each}: &m{each} {{<<: [{', '.join([f'*m{each - 1}'] * 9)}]}}" for each in range(1, levels)]
    return "\n".join(lines).encode()
