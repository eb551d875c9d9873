"""Properties that a user has written: loaded by `module:name`, and asked so that each mistake is reported as theirs.

The error names the property, the file and the line: of a module that cannot be imported, of an object that is no
property, of a name that is taken, and of a predicate that raises or answers neither True nor False.
"""

import ast
import traceback
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

from fsm.config.sampler_loading import imported
from fsm.config.wording import nearest
from fsm.errors import ConfigError
from specs.engine.graph import MOST_EVENTUALLY
from specs.properties.catalog import EVENTUALLY, NAMES
from specs.properties.kinds import Always, Edge, Eventually, Property, Sometimes

KINDS = (Always, Edge, Sometimes, Eventually)
_A_PROPERTY = "an Always, Edge, Sometimes or Eventually of specs.properties.kinds, where decorators make them"


class PropertyFault(Exception):
    """A user's property raised, or gave no answer. The message names it, the file and the line."""


@cache
def load_properties(targets: tuple[str, ...]) -> tuple[Property, ...]:
    """The properties that the targets name, in order. Raises ConfigError."""
    found: dict[str, Property] = {}
    for target in targets:
        module_name, _, name = target.partition(":")
        module = imported(module_name, f"--property {target}")
        where = f"--property {target} ({_place(module, name)})"
        prop = _whole(_named(module, name, target), target, where)
        if prop.name in NAMES or prop.name in found:
            other = "a built-in property" if prop.name in NAMES else "another --property"
            raise ConfigError(f"{where}: {other} is named {prop.name} too; rename this one")
        found[prop.name] = prop
    most = MOST_EVENTUALLY - len(EVENTUALLY)
    if sum(isinstance(prop, Eventually) for prop in found.values()) > most:
        raise ConfigError(f"more than {most} --property are an Eventually; check them in several runs")
    return tuple(found.values())


def _place(module: ModuleType, name: str) -> str:
    """The file, and the line on which the module last binds the name at its top."""
    file = vars(module).get("__file__")
    if not isinstance(file, str):
        return "built in"
    try:
        with open(file, encoding="utf-8") as opened:
            statements = ast.parse(opened.read()).body
    except (OSError, SyntaxError, ValueError):
        return file
    lines = [statement.lineno for statement in statements if name in _bound(statement)]
    return f"{file}, line {lines[-1]}" if lines else file


def _bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in statement.names}
    names = (node for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return {node.id for node in names}


def _named(module: ModuleType, name: str, target: str) -> Any:
    if name in vars(module):
        return vars(module)[name]
    known = [key for key, value in vars(module).items() if type(value) in KINDS]
    hint = nearest(name, known, f"its properties: {', '.join(known) or 'none'}")
    raise ConfigError(f"--property {target}: {vars(module).get('__file__', 'the module')} has no {name}; {hint}")


def _whole(found: Any, target: str, where: str) -> Property:
    """The property, guarded. Raises ConfigError for an object that is none."""
    kind = next((kind for kind in KINDS if issubclass(type(found), kind)), None)
    if kind is None:
        raise ConfigError(f"{where} is a {type(found).__name__}; expected {_A_PROPERTY}")
    name, sentence, rules, predicate = tuple.__iter__(found)
    if type(name) is not str or not name.isidentifier():
        raise ConfigError(f"{where}: its name is {name!r}; expected letters, digits and _, and no digit first")
    if type(sentence) is not str or type(rules) is not tuple or not all(type(rule) is str for rule in rules):
        raise ConfigError(f"{where}: expected a sentence, and rules as a tuple of texts such as ('L3',); empty is ()")
    if not callable(predicate):
        raise ConfigError(f"{where}: its predicate is a {type(predicate).__name__}; expected a function")
    guarded: Any = _guarded(predicate, f"property {target}")
    return kind(name, sentence, rules, guarded)


def _guarded(predicate: Callable[..., object], who: str) -> Callable[..., bool]:
    def ask(*given: object) -> bool:
        try:
            answer = predicate(*given)
        except KeyboardInterrupt:
            raise
        except BaseException as cause:
            raise PropertyFault(
                f"{who} raised {type(cause).__name__}: {cause}, in {_line_of(cause)}. There is no verdict; correct it: "
                f"it must answer True or False for every state or transition"
            ) from cause
        if answer is not True and answer is not False:
            raise PropertyFault(f"{who} answered {answer!r}, in {_start_of(predicate)}; expected True or False")
        return answer

    return ask


def _line_of(cause: BaseException) -> str:
    """Where the user's code was: the last line of the file in which the predicate stands, and what it called."""
    frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if frame.filename != __file__]
    if not frames:
        return "an unknown place"
    own = [frame for frame in frames if frame.filename == frames[0].filename][-1]
    inner = "" if frames[-1].filename == own.filename else f" (in {frames[-1].filename}, line {frames[-1].lineno})"
    return f"{own.filename}, line {own.lineno}{inner}"


def _start_of(predicate: Any) -> str:
    code = getattr(predicate, "__code__", None)
    return "an unknown place" if code is None else f"{code.co_filename}, line {code.co_firstlineno}"
