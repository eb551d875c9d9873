"""Strictness: a block refuses unknown keys, and YAML is read as users mean it.

Plain YAML silently takes the last of two equal keys, and YAML 1.1, which PyYAML reads, takes 1e-4 for text. The core
itself reads no file; `load_yaml` is for those who do.
"""

import re
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A block of the configuration. Unknown keys are refused, and nothing can be changed after loading.

    Nothing is converted silently: "8", true and 8.0 are no whole numbers, 1 is not true. The one exception
    is a whole number where a number is wanted. A field of a type that YAML has no word for (a path, a tuple)
    needs `Field(strict=False)`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True)


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: list[Any] = []
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key} is given twice", key_node.start_mark)
            seen.append(key)
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^(?:[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+)$"),
    list("-+.0123456789"),
)


def load_yaml(text: str) -> Any:
    """The value of a document. Raises yaml.YAMLError, with the line, also for a key given twice."""
    return yaml.load(text, Loader=_Loader)
