"""Checks before any actor starts. Each problem is a string that says what is wrong, why it matters, and the remedy.

What is looked at: the model directory, the data and its verifier, the output directory, memory, CPUs and disk.

The estimate of memory is what the configuration comes to at its fullest, with nothing on top. Per process:

    torch and the interpreter   200 MB; Ray itself 400 MB, a reward worker 100 MB, a process of its verdicts 20 MB
    trainer                     16 bytes a parameter (weights, gradients and two moments in float32), 4 where only
                                some layers are trained, 4 more for a reference; a rank 8 bytes a token of its
                                largest microbatch and vocabulary entry (logits and log-softmax)
    generation worker           the weights and the KV cache of all its sequences at full length, in its precision
    object store                as configured
    TransferQueue               a process like a trainer's each for its keeper, its controller and each storage unit
    collective weight sync      a copy of the weights, as they are sent, at the trainer and at every generation worker

Activations, fragmentation and what frameworks take for themselves come on top and are left out: what is refused
here has no chance, what passes may still run out. Ray's CPUs are logical, so actors may outnumber cores; threads of
one process may not.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from runtime.checkpoints.names import CHECKPOINTS
from runtime.launch.machine import Machine, this_machine
from runtime.metrics.writers import METRICS_FILE
from runtime.models.directory import TINY, ModelDirectoryProblem, ModelSize, inspect_model
from runtime.output.starting import CONFIG, MODEL, RUN, resume_problems, start_problems
from runtime.settings import (
    CollectiveSyncConfig,
    DataPlaneConfig,
    Settings,
    TransferQueuePlaneConfig,
    WeightSyncConfig,
)
from runtime.tasks.base import DataFailure, JudgedTask, TaskError
from runtime.tasks.config import DataConfig, JsonlTaskConfig
from runtime.tasks.data import judged, load_task
from runtime.tasks.jsonl import say_split
from runtime.tasks.split import Split
from runtime.tasks.verdicts.tryout import Trial, try_judge

INTERPRETER_BYTES, RAY_BYTES, REWARD_WORKER_BYTES = 200_000_000, 400_000_000, 100_000_000
VERDICT_PROCESS_BYTES = 20_000_000
_GIB = 2**30
_FILES, _FOLDERS = (CONFIG, RUN, METRICS_FILE, "plot.png"), (CHECKPOINTS, MODEL, "tensorboard", "wandb")
"""Names in a run's directory that it writes to."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run asks of this machine."""

    generation_workers: int
    worker_threads: int
    worker_sequences: int
    """Decoded at a time by one worker."""
    worker_bytes_per_value: int
    """4 for float32, 2 for bfloat16."""
    tokens_per_sequence: int
    """Prompt and completion at their longest."""
    trainer_ranks: int
    trainer_threads: int
    microbatch_tokens: int
    """The largest microbatch: the configured one, or a whole step where that is less."""
    trains_all_layers: bool
    keeps_reference: bool
    reward_workers: int
    object_store_bytes: int
    verdict_processes: int = 0
    """Of all reward workers."""
    queue_processes: int = 0
    """Of TransferQueue."""
    sent_bytes_per_value: int = 0
    """What the collective weight sync keeps a copy of the weights in, at either end; 0 where it is not used."""
    checkpoints: int = 0
    """How many are on the disk at a time, the one being written included."""
    on_gpu: bool = False
    """Trainer and workers keep their arrays on GPUs, so that they are left out."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What counting the prompts has shown (`runtime.launch.prompt_lengths`)."""

    refusals: tuple[str, ...] = ()
    """Why the run cannot start."""
    notices: tuple[str, ...] = ()


def needs_of(settings: Settings) -> Needs | None:
    """What the settings ask of this machine; None for a run on a cluster that is there already."""
    cluster, engine, checkpointing = settings.cluster, settings.generation.engine, settings.checkpointing
    if cluster.address is not None:
        return None
    torch_engine = engine.name == "torch"
    tokens_per_sequence = settings.generation.max_prompt_tokens + settings.generation.max_new_tokens
    step_tokens = settings.grpo.num_prompts_per_step * settings.grpo.num_generations_per_prompt * tokens_per_sequence
    return Needs(
        generation_workers=cluster.num_generation_workers,
        worker_threads=engine.threads if engine.name == "torch" else 1,
        worker_sequences=engine.max_batch_sequences if torch_engine else 0,
        worker_bytes_per_value=4 if engine.precision == "float32" else 2,
        tokens_per_sequence=tokens_per_sequence,
        trainer_ranks=cluster.num_trainer_ranks,
        trainer_threads=settings.policy.threads,
        microbatch_tokens=min(settings.policy.train_microbatch_tokens, step_tokens),
        trains_all_layers=settings.policy.train_last_layers is None,
        keeps_reference=settings.loss_fn.reference_policy_kl_penalty > 0,
        reward_workers=cluster.num_reward_workers,
        object_store_bytes=cluster.object_store_memory,
        verdict_processes=cluster.num_reward_workers * cluster.reward_processes * judged(settings.data),
        queue_processes=_queue_processes(settings.data_plane),
        sent_bytes_per_value=_sent_bytes_per_value(settings.weight_sync),
        checkpoints=checkpointing.keep + 1 if checkpointing.enabled else 0,
        on_gpu=cluster.trainer_device == "cuda",
    )


def _queue_processes(plane: DataPlaneConfig) -> int:
    return 2 + plane.num_storage_units if isinstance(plane, TransferQueuePlaneConfig) else 0


def _sent_bytes_per_value(sync: WeightSyncConfig) -> int:
    if not isinstance(sync, CollectiveSyncConfig):
        return 0
    return 4 if sync.dtype == "float32" else 2


def preflight(
    *,
    data: DataConfig,
    model: Path | ModelSize,
    output: Path,
    resume: bool,
    needs: Needs | None,
    machine: Machine | None = None,
    verdict_threads: int = 1,
    tell: Callable[[str], None] = lambda text: None,
) -> list[str]:
    """Every problem found; an empty list where all is well.

    Args:
        data: The `data` block. Both splits are loaded, and the verifier is tried on one answer of each.
        model: The policy's directory; its size where the package makes or converts the model.
        output: The run's own directory.
        resume: The run goes on in `output`.
        needs: None for a run on other machines than this: its memory and CPUs are not looked at.
        machine: None for this one.
        verdict_threads: Verdicts that a process will make at the same time.
        tell: Is told what a user should know, and what takes long.
    """
    problems = [*data_problems(data, verdict_threads, tell), *output_problems(output, resume=resume)]
    size = TINY
    try:
        size = inspect_model(model) if isinstance(model, Path) else model
    except ModelDirectoryProblem as problem:
        problems.append(str(problem))
    if needs is not None:
        problems += machine_problems(needs, size, machine or this_machine())
        problems += disk_problems(needs, size, output)
    return problems


def data_problems(data: DataConfig, threads: int = 1, tell: Callable[[str], None] = lambda text: None) -> list[str]:
    """A task, a line, an option or a verifier that is wrong, with file and line where there are some.

    A verifier of users or of a package is tried in a process of its own, as one of `threads`: nothing that it does
    harms this one. `tell` is told if that takes long, what is held out of a file, and what a verifier that fails has
    printed.
    """
    splits: tuple[Split, ...] = ("training", "validation") if data.validation_size else ("training",)
    problems: list[str] = []
    trials: list[Trial] = []
    for split in splits:
        try:
            task = load_task(data, split)
            reference = task.reference(0)
        except (TaskError, DataFailure) as error:
            problems.append(str(error))
        except Exception as error:
            problems.append(
                f"data.task: {type(error).__name__} while the {split} split was loaded: {error}; correct the module "
                "or the package that it names"
            )
        else:
            if isinstance(task, JudgedTask) and reference is not None:
                trials.append(Trial(task, 0, reference))
    if problems:
        return list(dict.fromkeys(problems))  # what both splits share is wrong once
    if isinstance(data.task, JsonlTaskConfig):
        tell(say_split(data.task, data))
    problem = try_judge(trials, threads, tell) if trials else None
    return [] if problem is None else [problem]


def output_problems(output: Path, *, resume: bool) -> Iterator[str]:
    """A directory that cannot be written, that holds something else, or whose run cannot be gone on with."""
    if not output.exists():
        if resume:
            yield f"{output} does not exist: there is nothing to resume; name the directory of the run, or start anew"
            return
        parent = next(parent for parent in output.absolute().parents if parent.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            yield f"{output} cannot be made: {parent} is not a directory that may be written; name another"
        return
    if not output.is_dir():
        yield f"{output} is a file, and the run needs a directory for its metrics and checkpoints; name another"
        return
    try:
        with tempfile.TemporaryFile(dir=output):
            pass
    except OSError as error:
        yield f"{output} cannot be written ({error.strerror}); correct its permissions or its disk, or name another"
        return
    yield from _refused_names(output)
    yield from resume_problems(output) if resume else start_problems(output)


def _refused_names(output: Path) -> Iterator[str]:
    """What lies in the run's directory under a name that it would write to, and can't be written to."""
    for name in _FILES:
        path = output / name
        if path.exists() and not path.is_file():
            yield f"{path} is not a plain file, and the run would write to it; move it away, or name another directory"
        elif path.exists() and not os.access(path, os.W_OK):
            yield f"{path} can't be written to; correct its permissions, or name another directory"
    for name in _FOLDERS:
        path = output / name
        if path.exists() and not (path.is_dir() and os.access(path, os.W_OK | os.X_OK)):
            yield (
                f"{path} is not a directory that may be written, and the run would write into it; move it away, or "
                "correct its permissions"
            )


def machine_problems(needs: Needs, size: ModelSize, machine: Machine) -> Iterator[str]:
    """Too little memory, or more threads in one process than there are CPUs."""
    for key, threads in (
        ("policy.threads", needs.trainer_threads),
        ("generation.engine.threads", needs.worker_threads),
    ):
        if threads > machine.cpus:
            yield (
                f"{key} is {threads}, and this process may use {machine.cpus} CPUs: threads that share a core wait "
                f"for one another, which makes small models many times slower; set it to {machine.cpus} or less"
            )
    parts = memory_parts(needs, size)
    needed = sum(parts.values())
    if machine.memory_bytes is not None and needed > machine.memory_bytes:
        listed = ", ".join(f"{what} {part / _GIB:.2f}" for what, part in parts.items())
        yield (
            f"the run needs about {needed / _GIB:.2f} GiB of memory ({listed}), and "
            f"{machine.memory_bytes / _GIB:.2f} GiB are free: the system would kill it; take fewer workers, a smaller "
            "model, generation.engine.max_batch_sequences or policy.train_microbatch_tokens, or free some memory"
        )


def memory_parts(needs: Needs, size: ModelSize) -> dict[str, int]:
    """Bytes that the run needs, by what for."""
    bytes_per_parameter = (16 if needs.trains_all_layers else 4) + 4 * needs.keeps_reference
    logits = 8 * needs.microbatch_tokens * size.vocabulary
    trainer = bytes_per_parameter * size.parameters + needs.trainer_ranks * logits
    cached_values = 2 * size.layers * size.key_value_width * needs.worker_sequences * needs.tokens_per_sequence
    worker = needs.worker_bytes_per_value * (size.parameters + cached_values)
    arrays = not needs.on_gpu
    sent = needs.sent_bytes_per_value * size.parameters
    parts = {
        "Ray": RAY_BYTES,
        "object store": needs.object_store_bytes,
        "trainer": needs.trainer_ranks * INTERPRETER_BYTES + arrays * trainer,
        "generation workers": needs.generation_workers * (INTERPRETER_BYTES + arrays * worker),
        "reward workers": needs.reward_workers * REWARD_WORKER_BYTES + needs.verdict_processes * VERDICT_PROCESS_BYTES,
        "TransferQueue": needs.queue_processes * INTERPRETER_BYTES,
        "collective weight sync": (1 + needs.generation_workers) * sent,
    }
    return {what: part for what, part in parts.items() if part}


def disk_problems(needs: Needs, size: ModelSize, output: Path) -> Iterator[str]:
    """Too little disk for the checkpoints: 12 bytes a parameter each (weights and two moments in float32)."""
    needed = 12 * size.parameters * needs.checkpoints
    place = next(place for place in (output.absolute(), *output.absolute().parents) if place.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        yield (
            f"{needs.checkpoints} checkpoints need about {needed / _GIB:.2f} GiB, and the disk of {place} has "
            f"{free / _GIB:.2f} GiB free: the run would end at the first that does not fit; lower "
            "checkpointing.keep, or name another output directory"
        )
