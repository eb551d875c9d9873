"""Whether a chat template is Jinja, found without running any of it, and so in any process. Imports no transformers."""

import re

from jinja2 import TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Generation(Extension):
    """The block by which transformers' templates mark the assistant's text."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's name and type

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def syntax_problem(template: str) -> tuple[int, str] | None:
    """The line at which a template is wrong, and how; None if it may be rendered.

    It is parsed and not compiled: Jinja's compiler computes constants such as `'x' * 10**10`, which may take all
    memory.
    """
    environment = ImmutableSandboxedEnvironment(extensions=[_Generation, loopcontrols])
    try:
        unknown = _unknown(environment.parse(template), environment)
    except TemplateSyntaxError as error:
        return error.lineno, said_of_syntax(error.message or "a syntax error")
    except RecursionError:
        return None  # the process that renders says so
    return unknown


def _unknown(node: nodes.Node, environment: ImmutableSandboxedEnvironment) -> tuple[int, str] | None:
    """The first filter or test that Jinja does not have. Below a condition it matters only where that is met."""
    if isinstance(node, nodes.If | nodes.CondExpr):
        return None
    if isinstance(node, nodes.Filter) and node.name not in environment.filters:
        return node.lineno, f"unknown filter {node.name!r}"
    if isinstance(node, nodes.Test) and node.name not in environment.tests:
        return node.lineno, f"unknown test {node.name!r}"
    found = (_unknown(child, environment) for child in node.iter_child_nodes())
    return next((each for each in found if each is not None), None)


def said_of_syntax(message: str) -> str:
    """Jinja's message for a template that cannot be compiled, in words of what to correct."""
    unknown = re.fullmatch(r"No (filter|test) named (.+?)\.?", message)
    return f"is not Jinja: {message}" if unknown is None else f"unknown {unknown[1]} {unknown[2]}"
