"""C1 to C4: which checkpoint a run goes on from, decided and tried before anything starts or changes.

All that could be refused later is refused here, in the process that was asked for the run: a checkpoint that is torn
or of another run, other data, another model, a snapshot that the core does not take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from fsm.config.setup import Setup
from fsm.errors import ConfigError
from fsm.snapshot import for_other_data, restore
from runtime.checkpoints.checkpoint import (
    Checkpoint,
    CheckpointRefused,
    CheckpointTorn,
    load,
    newest_whole,
)
from runtime.checkpoints.names import CHECKPOINTS, list_checkpoints
from runtime.checkpoints.origin import Origin, differences
from runtime.output.starting import CONFIG, RUN, run_id_of

Json = dict[str, Any]

NEWEST = "newest"
"""As a checkpoint: the newest whole one of the run's directory."""
NAMED = 4
"""How many differences, or torn checkpoints, a refusal names."""


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """What was asked for."""

    checkpoint: str = NEWEST
    """NEWEST, or a checkpoint: its directory, or its name in the run's."""
    accepts_other_data: bool = False


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a run goes on from."""

    checkpoint: Path
    control: Json
    """What the core is restored from: the checkpoint's snapshot, said to be of other data where it is."""
    origin: Origin
    """Of the checkpoints to come: the run of this one, with the data and the model that run from here on."""
    notices: tuple[str, ...]
    """What the start of the run says of it."""


def find_resume_point(output: Path, request: ResumeRequest, here: Origin, setup: Setup) -> ResumePoint:
    """The checkpoint to go on from, verified in full, and tried on the core. Changes nothing.

    Args:
        output: The run's directory.
        request: What was asked for.
        here: The data and the model as they are configured, under an id for a run that has none.
        setup: As the run will have it.

    Raises:
        ConfigError: The run cannot go on; the message names the checkpoint, why, and what to do.
    """
    checkpoint, notices = _chosen(output, request)
    run = _run_of(output, checkpoint) or here.run
    other_data = _compare(output, request, checkpoint, here, notices)
    control = _with_group_size(checkpoint)
    if other_data:
        control = for_other_data(control)
    try:
        restore(setup, control)
    except ConfigError as error:
        _refuse(checkpoint.path, str(error))
    return ResumePoint(checkpoint.path.resolve(), control, replace(here, run=run), tuple(notices))


def _refuse(path: Path, reason: str) -> NoReturn:
    raise ConfigError(f"the run cannot start from checkpoint {path}: {reason}") from None


def _chosen(output: Path, request: ResumeRequest) -> tuple[Checkpoint, list[str]]:
    """The checkpoint, and a notice for each that is passed over."""
    try:
        if request.checkpoint == NEWEST:
            return _newest(output)
        return load(_insisted(output, request.checkpoint)), []
    except CheckpointTorn as error:
        _refuse(error.path, f"{error.reason}. Leave its name out after --resume to take the newest whole one")
    except CheckpointRefused as error:
        _refuse(error.path, error.reason)


def _newest(output: Path) -> tuple[Checkpoint, list[str]]:
    checkpoint, torn = newest_whole(output / CHECKPOINTS)
    if checkpoint is None and torn:
        listed = "; ".join(f"{error.path.name}: {error.reason}" for error in torn[:NAMED])
        raise ConfigError(
            f"the run cannot start: none of the {len(torn)} checkpoints in {output / CHECKPOINTS} is whole ({listed}). "
            "Put a whole one back from a copy, or start anew in another directory"
        )
    if checkpoint is None:
        raise ConfigError(
            f"the run cannot start: {output} holds no checkpoint, so there is nothing to resume; name the directory of "
            "a run that wrote one (checkpointing.enabled), or start anew in another"
        )
    return checkpoint, [f"checkpoint {error.path.name} is passed over: {error.reason}" for error in torn]


def _insisted(output: Path, given: str) -> Path:
    """The directory that `--resume PATH` means."""
    for path in (Path(given), output / given, output / CHECKPOINTS / given):
        if path.is_dir():
            return path
    there = ", ".join(path.name for path in list_checkpoints(output / CHECKPOINTS)) or "none"
    raise ConfigError(
        f"the run cannot start: --resume {given}: there is no such directory, neither here nor in {output}. Its "
        f"checkpoints, newest first: {there}"
    )


def _run_of(output: Path, checkpoint: Checkpoint) -> str | None:
    """C4: the id of the directory's run, which the checkpoint must be of; None where none was noted."""
    known, origin = run_id_of(output), checkpoint.origin
    if known is None and checkpoint.path.resolve().parent != (output / CHECKPOINTS).resolve():
        _refuse(
            checkpoint.path,
            f"it does not lie in {output / CHECKPOINTS}, and {output} has no {RUN} that says whether it is of its run",
        )
    if known is not None and origin is not None and origin.run != known:
        _refuse(
            checkpoint.path,
            f"it is of run {origin.run}, and {output} is the directory of run {known} ({RUN}): going on from it would "
            f"train prompts twice. Move it away, or name a checkpoint of this run with --resume PATH",
        )
    return known if known is not None or origin is None else origin.run


def _compare(output: Path, request: ResumeRequest, checkpoint: Checkpoint, here: Origin, notices: list[str]) -> bool:
    """C3: whether the run goes on with other data, which must have been asked for."""
    then = checkpoint.origin
    if then is None:
        notices.append(
            f"checkpoint {checkpoint.path.name} does not say which run, data and model it is of: they could not be "
            "compared"
        )
        return request.accepts_other_data
    as_it_was = f"Set this as it was, as in {output / CONFIG}"
    others = list(differences(then.model, here.model))
    if others:
        _refuse(
            checkpoint.path,
            f"it was written with another model: {_listed(others)}. {as_it_was}, or start anew in another directory",
        )
    others = list(differences(then.data, here.data))
    if others and not request.accepts_other_data:
        _refuse(
            checkpoint.path,
            f"it was written with other data: {_listed(others)}. {as_it_was}; or add --new-data, and what is trained "
            f"stays, what is not is dropped, and the new data is read from its start",
        )
    if not others and request.accepts_other_data:
        notices.append("--new-data: the data is that of the checkpoint, so the run goes on in it")
    return bool(others)


def _listed(others: Sequence[str]) -> str:
    more = f"; and {len(others) - NAMED} more" if len(others) > NAMED else ""
    return "; ".join(others[:NAMED]) + more


def _with_group_size(checkpoint: Checkpoint) -> Json:
    """The snapshot. One that does not say its number of generations has it in its groups, or has no group."""
    groups = list(checkpoint.groups.values())
    known = {"num_generations_per_prompt": len(groups[0].rollouts)} if groups else {}
    return {**known, **checkpoint.control}
