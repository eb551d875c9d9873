"""A file of another framework as text and as a document, or why it cannot be read."""

from pathlib import Path
from typing import Any

import yaml

from fsm.config.strict import load_yaml
from fsm.errors import ConfigError
from runtime.files import reason_of, refuse_not_plain

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_PICKLES = (b"\x80", b"PK")
"""How a pickle begins, and the archive in which torch saves one."""


def text_of(path: Path) -> str:
    """The text of a file. Raises ConfigError."""
    try:
        refuse_not_plain(path)
        held = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {reason_of(error)}") from None
    try:
        return held.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if held.startswith(_PICKLES):
            raise ConfigError(
                f"{path} is no text. TRL's training_args.bin is a pickle, which is not read: write the same with "
                "`open('args.json', 'w').write(trainer.args.to_json_string())`"
            ) from None
        encoding = "UTF-16" if held.startswith(_UTF_16) else "LATIN1"
        found = "it is UTF-16" if encoding == "UTF-16" else f"byte {error.start + 1:,} is 0x{held[error.start]:02x}"
        raise ConfigError(
            f"{path} is not encoded in UTF-8 ({found}); convert it: iconv -f {encoding} -t UTF-8 {path.name}"
        ) from None


def document_in(path: Path) -> dict[str, Any]:
    """The mapping that a YAML or JSON file holds. Raises ConfigError."""
    try:
        document = load_yaml(text_of(path))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is neither YAML nor JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path} holds a {type(document).__name__}; allowed: a mapping of keys")
    named: dict[str, Any] = with_text_keys(document)
    return named


def with_text_keys(value: Any) -> Any:
    """The value with every key as a text, as YAML spells it: `true` and `5` are keys too."""
    if isinstance(value, dict):
        return {_spelled(key): with_text_keys(inner) for key, inner in value.items()}
    return [with_text_keys(inner) for inner in value] if isinstance(value, list) else value


def _spelled(key: Any) -> str:
    return {True: "true", False: "false"}[key] if isinstance(key, bool) else "null" if key is None else str(key)
