"""Strictness: a block refuses unknown keys, and YAML is read as users mean it.

Plain YAML silently takes the last of two equal keys, and YAML 1.1, which PyYAML reads, takes 1e-4 for text. The core
itself reads no file; `load_yaml` is for those who do.
"""

import re
from collections.abc import Hashable
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


LONGEST_CHARACTERS = 1_000_000
"""Of a document. The parser reads about 100,000 a second."""
_MOST_DIGITS = 100
"""Of a whole number. Python does not print one of more than 4,300."""
_MOST_VALUES = 50_000
"""Of a document, each alias counted as the values that it stands for: a few lines of aliases may stand for billions."""
_DEEPEST = 100
"""Levels of blocks."""
_MERGE = "tag:yaml.org,2002:merge"
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = 0
        self._flat: set[int] = set()
        """The ids of mappings whose `<<` are unfolded. The document keeps its nodes alive."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._values += 1
        if self._values > _MOST_VALUES:  # a long file is refused before it is read to its end
            raise yaml.composer.ComposerError(
                None, None, f"more than {_MOST_VALUES} values; no configuration has as many", self.get_mark()
            )
        return super().compose_node(parent, index)

    def compose_document(self) -> yaml.Node | None:
        node = super().compose_document()
        _count(node, {}, ())
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep=deep)
            if isinstance(value, int) and abs(value) >= 10**_MOST_DIGITS:
                raise ValueError(f"it has more than {_MOST_DIGITS} digits")
            if isinstance(value, str) and _NO_TEXT.search(value):
                raise ValueError("it has a character that no file can hold, such as NUL or half of a pair")
            return value
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # PyYAML's constructors raise what Python raises for a date that does not exist, or for too many digits.
            given = f"{node.value!r:.60}" if isinstance(node, yaml.ScalarNode) else "a value"
            raise yaml.constructor.ConstructorError(
                None, None, f"{given} cannot be read as {node.tag}: {error}"[:300], node.start_mark
            ) from None

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Unfold `<<`, once a node. A mapping's own keys go over merged ones, and earlier merged ones over later."""
        if id(node) in self._flat:
            return
        self._flat.add(id(node))
        own = [pair for pair in node.value if pair[0].tag != _MERGE]
        seen: set[Any] = set()
        for key_node, _ in own:
            key = self._key(key_node)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key} is given twice", key_node.start_mark)
            seen.add(key)
        merged = []
        for source in (each for key_node, value in node.value if key_node.tag == _MERGE for each in _sources(value)):
            self.flatten_mapping(source)
            for pair in source.value:
                if (key := self._key(pair[0])) not in seen:
                    seen.add(key)
                    merged.append(pair)
        node.value = [*merged, *own]

    def _key(self, node: yaml.Node) -> Any:
        key = self.construct_object(node, deep=True)
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(None, None, f"{key} cannot be a key", node.start_mark)
        return key


def _sources(node: yaml.Node) -> list[yaml.MappingNode]:
    """The mappings that `<<` names: one, or a list of them."""
    given = node.value if isinstance(node, yaml.SequenceNode) else [node]
    if not all(isinstance(each, yaml.MappingNode) for each in given):
        raise yaml.constructor.ConstructorError(None, None, "<< takes a mapping or a list of them", node.start_mark)
    return list(given)


def _count(node: yaml.Node | None, known: dict[int, int], above: tuple[int, ...]) -> int:
    """How many values a node stands for. Raises ComposerError for too many, too deep ones, and one within itself."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) in known:
        return known[id(node)]
    if id(node) in above or len(above) > _DEEPEST:
        what = "holds itself" if id(node) in above else f"is nested deeper than {_DEEPEST} levels"
        raise yaml.composer.ComposerError(None, None, f"a block {what}", node.start_mark)
    inner = [each for one in node.value for each in (one if isinstance(one, tuple) else (one,))]
    found = 1 + sum(_count(each, known, (*above, id(node))) for each in inner)
    if found > _MOST_VALUES:
        raise yaml.composer.ComposerError(
            None,
            None,
            f"a block has {found} values, aliases unfolded; at most {_MOST_VALUES} are read",
            node.start_mark,
        )
    known[id(node)] = found
    return found


class _QuotingDumper(yaml.SafeDumper):
    """Quotes a text that the loader would take for a number, such as 1e5."""


for _each in (_Loader, _QuotingDumper):
    _each.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^(?:[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+)$"),
        list("-+.0123456789"),
    )


def dump_yaml(value: Any, **style: Any) -> str:
    """A document of plain values that `load_yaml` reads as they were. style: as `yaml.dump` takes it."""
    dumped: str = yaml.dump(value, Dumper=_QuotingDumper, sort_keys=False, **style)
    return dumped


def load_yaml(text: str) -> Any:
    """The value of a document. Raises yaml.YAMLError, with the line, also for a key given twice.

    It also refuses what no configuration is: more than 1,000,000 characters or 50,000 values, whole numbers of
    more than 100 digits, and blocks nested deeper than 100 levels.
    """
    if len(text) > LONGEST_CHARACTERS:
        raise yaml.YAMLError(f"it has more than {LONGEST_CHARACTERS} characters; no configuration has as many")
    try:
        return yaml.load(text, Loader=_Loader)
    except RecursionError:
        raise yaml.YAMLError(f"a block is nested deeper than {_DEEPEST} levels") from None
