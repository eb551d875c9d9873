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

    Constant expressions are not computed, as Jinja's optimizer does, since they may take all memory.
    """
    environment = ImmutableSandboxedEnvironment(extensions=[_Generation, loopcontrols], optimized=False)
    try:
        environment.compile(template, raw=True)
    except TemplateSyntaxError as error:
        return error.lineno, said_of_syntax(error.message or "a syntax error")
    except RecursionError:
        return None  # the process that renders says so
    return None


def said_of_syntax(message: str) -> str:
    """Jinja's message for a template that can't be compiled, in words of what to correct."""
    unknown = re.fullmatch(r"No (filter|test) named (.+?)\.?", message)
    return f"is not Jinja: {message}" if unknown is None else f"unknown {unknown[1]} {unknown[2]}"
