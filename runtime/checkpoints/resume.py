"""C1 to C4: which checkpoint a run resumes from, decided before anything starts or changes.

Everything that could be refused later is refused here, in the process that the user starts: a torn checkpoint, one of
another run, other data, another model, and a snapshot that the core does not accept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from fsm.config.setup import Setup
from fsm.errors import ConfigError
from fsm.snapshot import for_other_data, restore
from runtime.checkpoints.checkpoint import (
    CHECKPOINTS,
    Checkpoint,
    CheckpointRefused,
    CheckpointTorn,
    list_checkpoints,
    load,
    newest_whole,
)
from runtime.checkpoints.origin import Origin, changed_content, changed_files, differences
from runtime.files import Json
from runtime.output.directory import CONFIG, RUN, run_id_of
from runtime.tasks.config import DataConfig

NEWEST = "newest"
"""In place of a checkpoint's name: the newest whole one of the run's directory."""
NAMED = 4
"""How many differences or torn checkpoints a refusal names."""


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """What the user asked for."""

    checkpoint: str = NEWEST
    """NEWEST, or the path of a checkpoint, or its name in the run's directory."""
    accepts_other_data: bool = False


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a run resumes from."""

    checkpoint: Path
    control: Json
    """The core's snapshot; marked as of other data if the run resumes with other data."""
    origin: Origin
    """Of the checkpoints to come: this one's run, with the data and model that are used from now on."""
    notices: tuple[str, ...]

    @property
    def step(self) -> int:
        """Steps closed before it."""
        return int(self.control["state"]["trainer"][1])


class ResumeRefused(ConfigError):
    """The run cannot resume from this checkpoint."""

    def __init__(self, path: Path, reason: str, advice: str = ""):
        self.path = path
        self.reason = reason
        super().__init__(f"the run cannot start from checkpoint {path}: {reason}{advice}")


def find_resume_point(
    output: Path, request: ResumeRequest, here: Origin, setup: Setup, data: DataConfig
) -> ResumePoint:
    """The checkpoint to resume from, verified in full, and tried on the core. Changes nothing.

    `here` has the configured data and model, and an id for a run that has none; `setup` is the one that the run will
    have; `data` names the files in a refusal. Raises ConfigError if the run cannot resume: it names the checkpoint, the
    reason, and the remedy. It is ResumeRefused if the checkpoint is to blame.
    """
    checkpoint, notices = _chosen(output, request)
    run = _run_of(output, checkpoint) or here.run
    other_data = _compare(output, request, checkpoint, here, data, notices)
    control = _with_group_size(checkpoint)
    if other_data:
        control = for_other_data(control)
    try:
        restore(setup, control)
    except ConfigError as error:
        _refuse(checkpoint.path, str(error))
    return ResumePoint(checkpoint.path.resolve(), control, replace(here, run=run), tuple(notices))


def _refuse(path: Path, reason: str, advice: str = "") -> NoReturn:
    raise ResumeRefused(path, reason, advice) from None


def _chosen(output: Path, request: ResumeRequest) -> tuple[Checkpoint, list[str]]:
    """The checkpoint, and a notice for each that is skipped."""
    try:
        if request.checkpoint == NEWEST:
            return _newest(output)
        return load(_named(output, request.checkpoint)), []
    except CheckpointTorn as error:
        _refuse(error.path, error.reason, ". Leave its name out after --resume to take the newest whole one")
    except CheckpointRefused as error:
        _refuse(error.path, error.reason)


def _newest(output: Path) -> tuple[Checkpoint, list[str]]:
    checkpoint, torn = newest_whole(output / CHECKPOINTS)
    if checkpoint is None and torn:
        listed = "; ".join(f"{error.path.name}: {error.reason}" for error in torn[:NAMED])
        raise ConfigError(
            f"the run cannot start: none of the {len(torn)} checkpoints in {output / CHECKPOINTS} is whole ({listed}). "
            "Put a whole one back from a copy, or start a new run in another directory"
        )
    if checkpoint is None:
        raise ConfigError(
            f"the run cannot start: {output} holds no checkpoint, so there is nothing to resume; name the directory of "
            "a run that wrote one (checkpointing.enabled), or start a new run in another"
        )
    return checkpoint, [f"checkpoint {error.path.name} is skipped: {error.reason}" for error in torn]


def _named(output: Path, given: str) -> Path:
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
    """C4: the id of the directory's run, to which the checkpoint must belong; None for an older run without an id."""
    known, origin = run_id_of(output), checkpoint.origin
    if known is None and checkpoint.path.resolve().parent != (output / CHECKPOINTS).resolve():
        _refuse(
            checkpoint.path,
            f"it does not lie in {output / CHECKPOINTS}, and {output} has no {RUN} that says whether it is of its run",
        )
    if known is not None and origin is not None and origin.run != known:
        _refuse(
            checkpoint.path,
            f"it is of run {origin.run}, and {output} is the directory of run {known} ({RUN}): resuming from it would "
            f"train prompts twice. Move it away, or name a checkpoint of this run with --resume PATH",
        )
    return known if known is not None or origin is None else origin.run


def _compare(
    output: Path, request: ResumeRequest, checkpoint: Checkpoint, here: Origin, data: DataConfig, notices: list[str]
) -> bool:
    """C3: whether the run resumes with other data, which the user must have allowed."""
    then = checkpoint.origin
    if then is None:
        notices.append(
            f"checkpoint {checkpoint.path.name} does not say which run, data and model it is of: they could not be "
            "compared"
        )
        return request.accepts_other_data
    as_it_was = f"Set this as it was, as in {output / CONFIG}"
    others = list(differences(then.model, here.model))
    if changed := changed_content(then.model, here.model):
        _refuse(
            checkpoint.path,
            f"it was written with another model: the content of its {' and its '.join(changed)} differs. Put the old "
            f"directory back, which policy.model_name in {output / CONFIG} names, or start a new run elsewhere",
        )
    if others:
        _refuse(
            checkpoint.path,
            f"it was written with another model: {_listed(others)}. {as_it_was}, or start a new run elsewhere",
        )
    others = list(differences(then.data, here.data))
    if others and not request.accepts_other_data:
        files = changed_files(then.data, here.data, data)
        back = f"Put back {'what was there' if len(files) == 1 else 'what was in both'}, or name its copy"
        _refuse(
            checkpoint.path,
            f"it was written with other data: {_listed(files or others)}. {back if files else as_it_was}; or add "
            "--new-data: trained prompts stay, others are dropped, and the new data is read from its start",
        )
    if not others and request.accepts_other_data:
        notices.append("--new-data: the data is the checkpoint's, so the run continues with it")
    return bool(others)


def _listed(others: Sequence[str]) -> str:
    more = f"; and {len(others) - NAMED} more" if len(others) > NAMED else ""
    return "; ".join(others[:NAMED]) + more


def _with_group_size(checkpoint: Checkpoint) -> Json:
    """The snapshot, with its number of generations: an older one has it in its groups, if it has any."""
    groups = list(checkpoint.groups.values())
    known = {"num_generations_per_prompt": len(groups[0].rollouts)} if groups else {}
    return {**known, **checkpoint.control}
