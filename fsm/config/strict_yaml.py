"""YAML as users mean it: a key given twice is a mistake, and 1e-4 is a number.

For readers of files; the core itself reads none. Plain YAML silently takes the last of two keys, and YAML 1.1, which
PyYAML reads, takes 1e-4 for text (YAML 1.2 does not).
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_EXPONENT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping, or ConstructorError at the key that stands twice."""
        seen: list[Any] = []
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key} is given twice", key_node.start_mark)
            seen.append(key)
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(f"^(?:{_EXPONENT.pattern})$"), list("-+.0123456789")
)


def load_yaml(text: str) -> Any:
    """What a document holds. Raises yaml.YAMLError, with the line, also for a key given twice."""
    return yaml.load(text, Loader=_Loader)
