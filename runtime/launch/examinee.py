"""What `evenstep eval` measures: a model directory, a run's final model, or one of its checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fsm.errors import ConfigError
from runtime.checkpoints.checkpoint import (
    CHECKPOINTS,
    MANIFEST,
    TRAINER,
    CheckpointRefused,
    list_checkpoints,
    load,
    step_of,
)
from runtime.output.directory import CONFIG, FINAL_MODEL, RUN, initial_model_of
from runtime.settings import REFUSED_IN_EVALUATION, SMOLLM2, TINY, Settings, load_settings


@dataclass(frozen=True, slots=True)
class Examinee:
    """A model, and the configuration that belongs to it."""

    model_name: str
    """As `policy.model_name`: a directory, or a model that the package makes."""
    weights: Path | None
    """The trainer's folder of a checkpoint, whose weights replace those of the model; None for the model's own."""
    config: Path | None
    """The configuration of the run that made it; None for a model of no run."""
    says: str
    """For the user."""


def load_evaluation(path: Path, overrides: Sequence[str] = ()) -> Settings:
    """Settings of which nothing is refused that only training needs. Raises ConfigError."""
    return load_settings(path, overrides, REFUSED_IN_EVALUATION)


def find_examinee(given: str, step: int | None) -> Examinee:
    """The model that `evenstep eval GIVEN --step STEP` means. Raises ConfigError with what to give instead."""
    path = Path(given)
    if given in (TINY, SMOLLM2):
        _refuse_step(given, step)
        return Examinee(given, None, None, f"the model {given}")
    if not path.is_dir():
        raise ConfigError(
            f"{given} is not a directory: give one of a Hugging Face model, one of a run, {TINY} or {SMOLLM2}; models "
            "are not downloaded"
        )
    if (path / MANIFEST).is_file():
        raise ConfigError(
            f"{given} is a checkpoint of a run: give the run's directory and --step {step_of(path.resolve())}"
        )
    if _is_run(path):
        return _of_run(path, step)
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"{given} is neither a model, which has a config.json, nor a run, which has a {CONFIG} and a {RUN}: give "
            "the directory of one"
        )
    _refuse_step(given, step)
    run = path.resolve().parents[1]  # of RUN/model/final
    return Examinee(str(path.resolve()), None, run / CONFIG if _is_run(run) else None, f"the model in {path}")


def _is_run(path: Path) -> bool:
    return (path / CONFIG).is_file() and (path / RUN).is_file()


def _refuse_step(given: str, step: int | None) -> None:
    if step is not None:
        raise ConfigError(f"--step {step}: {given} is a model; give the directory of a run, which has checkpoints")


def _of_run(run: Path, step: int | None) -> Examinee:
    checkpoints = list_checkpoints(run / CHECKPOINTS)
    there = ", ".join(str(number) for number in sorted({step_of(path) for path in checkpoints})) or "none"
    if step is None:
        final = run / FINAL_MODEL
        if not (final / "config.json").is_file():
            raise ConfigError(
                f"the run in {run} has no {FINAL_MODEL}, which every end of a run leaves except kill -9: it has not "
                f"ended, or was killed; give --step with the step of a checkpoint (there: {there})"
            )
        return Examinee(str(final.resolve()), None, run / CONFIG, f"the final model of the run in {run}")
    chosen = next((path for path in checkpoints if step_of(path) == step), None)
    if chosen is None:
        raise ConfigError(f"--step {step}: the run in {run} has no such checkpoint; its steps: {there}")
    try:
        weights = load(chosen).path / TRAINER
    except CheckpointRefused as error:
        raise ConfigError(f"--step {step}: {error}; its steps: {there}") from None
    return Examinee(_initial_model(run), weights, run / CONFIG, f"step {step} of the run in {run}")


def _initial_model(run: Path) -> str:
    """The tiny model that the run started from, or the `policy.model_name` of its configuration."""
    made = initial_model_of(run)
    return str(made.resolve()) if (made / "config.json").is_file() else load_evaluation(run / CONFIG).policy.model_name
