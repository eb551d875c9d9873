"""`evenstep migrate`: a configuration of NeMo-RL, TRL or verl as one of evenstep."""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fsm.config.parse import parse_config
from fsm.config.strict import dump_yaml
from fsm.config.wording import given_as
from fsm.errors import ConfigError
from runtime.cli.common import OutputRefused, WrongUse, errors_as_exit_codes, require_writable, write_whole
from runtime.migrate.frameworks import Framework, recognised, table_of
from runtime.migrate.reading import TheirFile, read_given
from runtime.migrate.rows import Fate
from runtime.migrate.translate import Migration, Translated, translate
from runtime.settings import REFUSED_ACROSS_BLOCKS, Settings
from runtime.trace.show import printable_lines

REFUSED = 3
"""The exit code if `evenstep check` refuses what was written."""
_ORDER = (Fate.CARRIED, Fate.RENAMED, Fate.DEFAULT, Fate.LOST, Fate.DECIDE)
"""As they are shown: what matters most is last, where a terminal stands."""
_COUNTED = {
    Fate.CARRIED: "carried over",
    Fate.RENAMED: "renamed",
    Fate.DEFAULT: "with a default here",
    Fate.LOST: "without a counterpart",
    Fate.DECIDE: "to be decided",
}
_STYLES = {Fate.LOST: "yellow", Fate.DECIDE: "bold red"}
_WIDTH = 160
"""Of the table where the output is no terminal."""
_NAMED = 3
"""Keys of a block that are named."""
_LONGEST = 44
"""Characters of a value."""


def migrate(
    file: Annotated[Path, typer.Argument(help="YAML or JSON of NeMo-RL, TRL or verl.", metavar="FILE")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value of theirs, as on their command line.", metavar="KEY=VALUE")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the YAML to this file; without, to stdout.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    framework: Annotated[
        Framework | None, typer.Option("--from", help="Whose file it is; without, its keys tell.")
    ] = None,
) -> None:
    """Translate a configuration of NeMo-RL, TRL or verl, and report on every key.

    A chain of `defaults` is followed and interpolation is resolved (with the package omegaconf: the extra `migrate`).
    The table says which keys were carried over, renamed, have a default here, have no counterpart (and what that
    means), or need a decision of yours. docs/migrate.md has an example.

    Exit codes: 0 written, and `evenstep check` would not refuse it; 3 written, but refused until you decide; 1 the file
    cannot be read; 2 an argument is wrong, or the file exists.

    Example: evenstep migrate grpo_math_1B.yaml grpo.max_num_steps=100 -o run.yaml
    """
    with errors_as_exit_codes("migrate"):
        if output is not None:
            _refuse_existing(output, file, force)
        given = read_given(file, overrides or [])
        known = framework or recognised(given.document)
        if known is None:
            raise WrongUse(_unrecognised(file, given))
        folder = file.resolve().parent
        migration = translate(given.document, table_of(known), (Path.cwd(), folder, *folder.parents))
        refused = problems_of(migration.document)
        command = shlex.join(["evenstep", "migrate", str(file), *(overrides or [])])
        text = _written(migration, table_of(known).framework, given, command, refused)
        if output is None:
            typer.echo(text, nl=False)
        else:
            write_whole(output, lambda opened: opened.write(text), encoding="utf-8")
        console = Console(stderr=output is None)
        _show(
            console if console.is_terminal else Console(stderr=output is None, width=_WIDTH), given, migration, refused
        )
        if output is not None:
            console.print(f"wrote {output}; next: evenstep check {output}", soft_wrap=True, highlight=False)
    if refused:
        raise typer.Exit(REFUSED)


def problems_of(document: object) -> list[str]:
    """Why a run would refuse a document; empty if it would not."""
    try:
        settings = parse_config(document, model=Settings)
    except ConfigError as error:
        return [str(error).removeprefix("configuration refused: ")]
    return [problem for refusal in REFUSED_ACROSS_BLOCKS for problem in refusal(settings)]


def _refuse_existing(output: Path, file: Path, force: bool) -> None:
    if output.resolve() == file.resolve():
        raise WrongUse(f"-o {output} is the file that is read: name another one")
    if output.exists() and output.is_file() and not force:
        raise OutputRefused(f"{output} exists: name another file, or add --force")
    require_writable(output)


def _unrecognised(file: Path, given: TheirFile) -> str:
    keys = ", ".join(list(given.document)[:6])
    if not problems_of(given.document):
        return f"{file} is a configuration of evenstep already: run `evenstep check {file}`"
    return (
        f"{file} has the keys {keys}: those of neither NeMo-RL (grpo, policy), TRL (num_generations, …) nor verl "
        f"(actor_rollout_ref); say whose it is: --from {', '.join(each.value for each in Framework)}"
    )


def _written(migration: Migration, framework: str, given: TheirFile, command: str, refused: list[str]) -> str:
    """The document as YAML, in the order of the reference, below what it is and what is to be decided."""
    document = {key: migration.document[key] for key in Settings.model_fields if key in migration.document}
    lines = [f"From a configuration of {framework}, by: {command}"]
    decide = [finding for finding in migration.findings if finding.kind is Fate.DECIDE]
    if decide or refused or given.not_found:
        lines += ["Needs a decision:"]
    lines += [f"- {_not_found(entry)}" for entry in given.not_found]
    lines += [f"- {finding.ours or finding.theirs}: {finding.note or _value(finding.given)}" for finding in decide]
    lines += [f"- {problem}" for problem in refused]
    comment = "".join(f"# {printable_lines(' '.join(line.split()))}\n" for line in lines)
    dumped = dump_yaml(document, allow_unicode=True, width=100)
    if dumped != f"{printable_lines(dumped)}\n":  # PyYAML escapes control characters, but not U+202E
        dumped = dump_yaml(document, width=100)
    return comment + dumped


def _show(console: Console, given: TheirFile, migration: Migration, refused: list[str]) -> None:
    """The table, one part for each kind, and how many keys are of which."""
    headers = (Column(name, overflow="fold") for name in ("theirs", "here", "what it means"))
    table = Table(*headers, show_edge=False, pad_edge=False)
    for kind in _ORDER:
        found = [finding for finding in migration.findings if finding.kind is kind]
        if found:
            table.add_section()
            table.add_row(Text(kind.value, style=_STYLES.get(kind, "bold")))
        for row in _defaults(found) if kind is Fate.DEFAULT else map(_cells, found):
            table.add_row(*(Text(printable_lines(cell)) for cell in row))
    for entry in given.not_found:
        table.add_row("defaults", "", Text(printable_lines(_not_found(entry))))
    for problem in refused:
        table.add_row("", "", Text(printable_lines(f"`evenstep check` refuses it: {problem}")))
    console.print(table)
    counts = Counter(dict.fromkeys(_ORDER, 0))
    for finding in migration.findings:
        counts[finding.kind] += finding.keys
    counts[Fate.DECIDE] += len(refused) + len(given.not_found)
    said = ", ".join(f"{number} {_COUNTED[kind]}" for kind, number in counts.items())
    console.print(f"keys: {said}; all others have the defaults of `evenstep config`", soft_wrap=True, highlight=False)


def _not_found(entry: str) -> str:
    return f"{entry}.yaml of its defaults is not here: give the whole configuration, as its framework prints it"


def _cells(finding: Translated) -> tuple[str, str, str]:
    theirs = _named(finding)
    if finding.theirs and not isinstance(finding.given, dict):
        theirs += f": {_value(finding.given)}"
    written = f": {_value(finding.value)}" if finding.is_written else ""
    here = "the same" if finding.kind is Fate.CARRIED else f"{finding.ours}{written}" if finding.ours else ""
    return theirs, here, finding.note


def _defaults(findings: Sequence[Translated]) -> Iterator[tuple[str, str, str]]:
    """Keys for which there is nothing to set; those of which the same is said are one row."""
    rows: dict[str, list[str]] = {}
    for finding in findings:
        rows.setdefault(finding.note, []).append(_named(finding))
    for note, names in rows.items():
        yield ", ".join(names), "", note


def _named(finding: Translated) -> str:
    """A key by its whole path; of a block, how many keys, and the first of them."""
    if finding.keys == 1:
        return finding.paths[0] if finding.paths else finding.theirs
    first = ", ".join(path.removeprefix(f"{finding.theirs}.") for path in finding.paths[:_NAMED])
    return f"{finding.theirs} ({finding.keys} keys: {first}{', …' if finding.keys > _NAMED else ''})"


def _value(value: Any) -> str:
    """A value on one line, as in YAML."""
    if isinstance(value, str | None | bool | int):
        text = given_as(value).removeprefix("the text ") if not isinstance(value, str) else value
    else:
        dumped = dump_yaml(value, default_flow_style=True, width=10_000)
        text = dumped.removesuffix("...\n").strip()
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
