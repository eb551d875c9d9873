"""Checks before any actor starts. Each problem is a string that says what is wrong, why it matters, and the remedy.

Checked are the model directory, the data and its verifier, the output directory, memory, CPUs and disk.

The memory estimate is the sum of these parts at the configuration's maximum, per process:

    torch and the interpreter   200 MB; Ray itself 400 MB, a reward worker 100 MB, a process of its verdicts 20 MB
    trainer                     16 bytes a parameter (weights, gradients and two moments in float32), 4 where only
                                some layers are trained, 4 more for a reference; a rank 8 bytes a token of its
                                largest microbatch and vocabulary entry (logits and log-softmax)
    generation worker           the weights and the KV cache of all its sequences at full length, in its precision
    object store                as configured
    TransferQueue               a process like a trainer's each for its keeper, its controller and each storage unit
    collective weight sync      a copy of the weights, as they are sent, at the trainer and at every generation worker
    copy for a checkpoint       12 bytes a parameter at the first trainer rank, 4 where only some layers are trained

Activations, fragmentation and the overhead of frameworks are left out: a run that is refused here has no chance, and
one that passes may still run out of memory. Ray's CPUs are logical, so actors may outnumber cores; threads of one
process may not.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runtime.actors.reward_worker import pool_size, verdict_threads
from runtime.checkpoints.checkpoint import CHECKPOINTS
from runtime.evaluation.sets import EvaluationSet, HeldOut, engine_limits
from runtime.generation.config import TorchEngineConfig
from runtime.launch.machine import Machine, this_machine
from runtime.metrics.writers import METRICS_FILE, SAMPLES_FILE
from runtime.models.directory import SMOLLM2 as SMOLLM2_SIZE
from runtime.models.directory import TINY as TINY_SIZE
from runtime.models.directory import ModelDirectoryProblem, ModelSize, has_chat_template, inspect_model
from runtime.models.template_syntax import syntax_problem
from runtime.output.directory import CONFIG, MODEL, RUN, resume_problems, start_problems
from runtime.settings import (
    SMOLLM2,
    TINY,
    CollectiveSyncConfig,
    Settings,
    TransferQueuePlaneConfig,
)
from runtime.tasks.base import DataFailure, JudgedTask, TaskError
from runtime.tasks.config import CustomTaskConfig, DataConfig, RowsTaskConfig
from runtime.tasks.data import judged, load_task, read_chat_template
from runtime.tasks.environments.task import try_environment
from runtime.tasks.files import say_split
from runtime.tasks.overlap import FileTaskConfig, is_held_out_apart, trained_on
from runtime.tasks.split import Split
from runtime.tasks.verdicts.handle import PoolSize
from runtime.tasks.verdicts.tryout import Trial, try_judge
from runtime.wording import counted

Tell = Callable[[str], None]
INTERPRETER_BYTES, RAY_BYTES, REWARD_WORKER_BYTES = 200_000_000, 400_000_000, 100_000_000
FEW_HELD_OUT = 16
"""A set with fewer prompts is pointed out: one of them is more than 6% of its accuracy."""
VERDICT_PROCESS_BYTES = 20_000_000
_GIB = 2**30
_ALONE = PoolSize(processes=1, threads=1)
_FILES, _FOLDERS = (CONFIG, RUN, METRICS_FILE, SAMPLES_FILE, "plot.png"), (CHECKPOINTS, MODEL, "tensorboard", "wandb")
"""Files and folders in a run's directory that the run writes."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What a check of model or prompts has found."""

    refusals: tuple[str, ...] = ()
    """Why the run cannot start."""
    notices: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """Prompts that the tokenizer does not know in full: refused for a new tiny model, else told."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The model of a run."""

    found: Findings
    directory: Path | None
    """None if the run is refused."""


def preflight(
    settings: Settings,
    output: Path,
    *,
    resume: bool,
    machine: Machine | None = None,
    tell: Tell = lambda text: None,
) -> list[str]:
    """Every problem found.

    Args:
        settings: Both splits of the data are loaded, and the verifier is tried on one answer of each and on an empty
            completion. Memory, CPUs and disk are not checked for a run that joins a cluster.
        output: The run's directory.
        resume: The run in `output` is resumed.
        machine: None for this one.
        tell: Gets what a user should know, and what takes long.
    """
    problems = problems_of_users(settings, tell)
    problems += output_problems(output, resume=resume)
    model = TINY_SIZE
    try:
        model = model_size(settings.policy.model_name)
    except ModelDirectoryProblem as problem:
        problems.append(str(problem))
    if settings.cluster.address is None:
        problems += machine_problems(settings, model, machine or this_machine())
        problems += disk_problems(settings, model, output)
    return problems


def model_size(name: str) -> ModelSize:
    """The size of the model that `policy.model_name` names. Raises ModelDirectoryProblem if there is none."""
    return {TINY: TINY_SIZE, SMOLLM2: SMOLLM2_SIZE}.get(name) or inspect_model(Path(name))


def problems_of_users(settings: Settings, tell: Tell) -> list[str]:
    """What is wrong with the data and the sets, their verifiers and environments, and the chat template."""
    cluster = settings.cluster
    threads = verdict_threads(settings.data, cluster.reward_threads, cluster.reward_processes)
    size = replace(pool_size(threads, cluster.reward_processes, cluster.reward_memory_mib), processes=1)
    problems = data_problems(settings.data, size, tell)
    problems += set_problems([each for each in settings.sets if each.data != settings.data], size, tell)
    problems += trained_sets(settings.data, settings.sets)
    return [*problems, *template_problems(settings)]


def data_problems(data: DataConfig, size: PoolSize = _ALONE, tell: Tell = lambda text: None) -> list[str]:
    """A task, a line, an option or a verifier that is wrong, with its file and line if it has them.

    A verifier of a user or a package is tried in a separate process, as one of a pool, where it cannot harm this one.
    `tell` gets a line if that takes long, the number of lines held out, and the output of a verifier that fails.
    """
    splits: tuple[Split, ...] = ("training", "validation") if data.validation_size else ("training",)
    problems, trials = _problems_and_trials(data, splits)
    if problems:
        return problems
    if isinstance(data.task, RowsTaskConfig):
        tell(say_split(data.task, data))
    return _problems_of_code(data, trials, size, tell)


def template_problems(settings: Settings) -> Iterator[str]:
    """`data.chat` without a chat template. Messages without `data.chat` are looked at where prompts are counted."""
    yield from _template_syntax(settings.data)
    name = settings.policy.model_name
    if not settings.data.chat or settings.data.chat_template is not None or name == SMOLLM2:
        return
    try:
        has_one = name != TINY and has_chat_template(Path(name))
        model_size(name)
    except ModelDirectoryProblem:  # inspecting the model reports it
        return
    if not has_one:
        yield (
            f"data.chat is true, and the model {name!r} (policy.model_name) has no chat template; use an "
            "instruction-tuned model, name a Jinja file in data.chat_template, or set data.chat to false"
        )


def _template_syntax(data: DataConfig) -> Iterator[str]:
    try:
        template = read_chat_template(data)
    except TaskError:  # told with the data
        return
    problem = None if template is None else syntax_problem(template)
    if problem is not None:
        yield f"{data.chat_template}:{problem[0]}: {problem[1]}; correct the template, or name another"


def set_problems(sets: Sequence[EvaluationSet], size: PoolSize = _ALONE, tell: Tell = lambda text: None) -> list[str]:
    """The same for evaluation sets, whose training side is not loaded. Sets of the same data are looked at once."""
    problems: list[str] = []
    seen: list[DataConfig] = []
    for each in sets:
        if each.data not in seen:
            seen.append(each.data)
            found, trials = _problems_and_trials(each.data, ("validation",))
            found = found or _problems_of_code(each.data, trials, size, tell)
            problems += [f"{each.key}: {problem}" for problem in found]
    return problems


def trained_sets(run: DataConfig, sets: Sequence[EvaluationSet]) -> list[str]:
    """Sets that would measure rows that a run trains on. Files that are missing are told elsewhere."""
    problems: list[str] = []
    for each in sets:
        try:
            why = trained_on(each.data, run)
        except TaskError:
            continue
        problems += [] if why is None else [f"{each.key}: {why}"]
    return problems


def _problems_and_trials(data: DataConfig, splits: Sequence[Split]) -> tuple[list[str], list[Trial]]:
    """What is wrong with the data, and what its judge is to be tried on."""
    problems: list[str] = []
    trials: list[Trial] = []
    for split in splits:
        try:
            task = load_task(data, split)
            reference = task.reference(0)
            task.num_prompts  # noqa: B018 - an environment is asked only now
            if reference is None and isinstance(data.task, RowsTaskConfig):
                reference = ""  # rows without answers
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
                if reference and split == splits[0] and isinstance(data.task, RowsTaskConfig):
                    trials.append(Trial(task, 0, ""))  # what is right for the reference may raise for any other
    if data.chat_template is not None and not data.chat_template.is_file():
        problems.append(f"data.chat_template {data.chat_template} is no file; name a Jinja file")
    return list(dict.fromkeys(problems)), trials  # a problem that both splits share is listed once


def _problems_of_code(data: DataConfig, trials: Sequence[Trial], size: PoolSize, tell: Tell) -> list[str]:
    """Why users' code does not work: an environment, or a judge on its trials."""
    if isinstance(data.task, CustomTaskConfig):
        problem = try_environment(data.task, data, tell)
    else:
        problem = try_judge(trials, size, tell) if trials else None
    return [] if problem is None else [problem]


def output_problems(output: Path, *, resume: bool) -> Iterator[str]:
    """A directory that cannot be written, that holds other files, or whose run cannot be resumed."""
    if not output.exists():
        if resume:
            yield f"{output} does not exist: there is nothing to resume; name the run's directory, or start a new run"
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
    """Files and folders in the run's directory that the run would write to and cannot."""
    for name in _FILES:
        path = output / name
        if path.exists() and not path.is_file():
            yield f"{path} is not a plain file, and the run would write to it; move it away, or name another directory"
        elif path.exists() and not os.access(path, os.W_OK):
            yield f"{path} cannot be written to; correct its permissions, or name another directory"
    for name in _FOLDERS:
        path = output / name
        if path.exists() and not (path.is_dir() and os.access(path, os.W_OK | os.X_OK)):
            yield (
                f"{path} is not a directory that may be written, and the run would write into it; move it away, or "
                "correct its permissions"
            )


def machine_problems(settings: Settings, size: ModelSize, machine: Machine) -> Iterator[str]:
    """Too little memory, or more threads in one process than there are CPUs."""
    engine = settings.generation.engine
    for key, threads in (
        ("policy.threads", settings.policy.threads),
        ("generation.engine.threads", engine.threads if isinstance(engine, TorchEngineConfig) else 1),
    ):
        if threads > machine.cpus:
            yield (
                f"{key} is {threads}, and this process may use {machine.cpus} CPUs: threads that share a core wait "
                f"for one another, which makes small models many times slower; set it to {machine.cpus} or less"
            )
    parts = memory_parts(settings, size)
    needed = sum(parts.values())
    if machine.memory_bytes is not None and needed > machine.memory_bytes:
        listed = ", ".join(f"{what} {part / _GIB:.2f}" for what, part in parts.items())
        yield (
            f"the run needs about {needed / _GIB:.2f} GiB of memory ({listed}), and "
            f"{machine.memory_bytes / _GIB:.2f} GiB are free: the system would kill it; take fewer workers, a smaller "
            "model, generation.engine.max_batch_sequences or policy.train_microbatch_tokens, or free some memory"
        )


def memory_parts(settings: Settings, size: ModelSize) -> dict[str, int]:
    """Bytes that the run needs, by part."""
    cluster, policy, grpo = settings.cluster, settings.policy, settings.grpo
    generation, plane, sync = settings.generation, settings.data_plane, settings.weight_sync
    engine, workers = generation.engine, cluster.num_generation_workers
    arrays = cluster.trainer_device != "cuda"  # those on GPUs are not counted
    longest = engine_limits(generation, settings.sets)
    sequence_tokens = longest.max_prompt_tokens + longest.max_new_tokens
    step_tokens = grpo.num_prompts_per_step * grpo.num_generations_per_prompt * sequence_tokens
    keeps_reference = settings.loss_fn.reference_policy_kl_penalty > 0
    bytes_per_parameter = (16 if policy.train_last_layers is None else 4) + 4 * keeps_reference
    logits = 8 * min(policy.train_microbatch_tokens, step_tokens) * size.vocabulary
    trainer = bytes_per_parameter * size.parameters + cluster.num_trainer_ranks * logits
    sequences = engine.max_batch_sequences if isinstance(engine, TorchEngineConfig) else 0
    cached_values = 2 * size.layers * size.key_value_width * sequences * sequence_tokens
    worker = (4 if engine.precision == "float32" else 2) * (size.parameters + cached_values)
    own_data = [each.data for each in settings.sets if each.data != settings.data]
    pools = judged(settings.data) + sum(map(judged, own_data))
    verdict_processes = cluster.num_reward_workers * cluster.reward_processes * pools
    tasks = [settings.data.task, *(data.task for data in own_data)]
    environment_processes = workers * sum(task.processes for task in tasks if isinstance(task, CustomTaskConfig))
    queue_processes = 2 + plane.num_storage_units if isinstance(plane, TransferQueuePlaneConfig) else 0
    collective = isinstance(sync, CollectiveSyncConfig)
    copy = (4 if sync.dtype == "float32" else 2) * size.parameters if collective else 0
    parts = {
        "Ray": RAY_BYTES,
        "object store": cluster.object_store_memory,
        "trainer": cluster.num_trainer_ranks * INTERPRETER_BYTES + arrays * trainer,
        "generation workers": workers * (INTERPRETER_BYTES + arrays * worker),
        "reward workers": cluster.num_reward_workers * REWARD_WORKER_BYTES + verdict_processes * VERDICT_PROCESS_BYTES,
        "environments": environment_processes * VERDICT_PROCESS_BYTES,
        "TransferQueue": queue_processes * INTERPRETER_BYTES,
        "collective weight sync": (1 + workers) * copy,
        "copy for a checkpoint": settings.checkpointing.enabled * _checkpoint_bytes(settings, size),
    }
    return {what: part for what, part in parts.items() if part}


def _checkpoint_bytes(settings: Settings, size: ModelSize) -> int:
    """Weights in float32, and, of the parameters that are trained, two moments; of a few layers they are small."""
    return (12 if settings.policy.train_last_layers is None else 4) * size.parameters


def disk_problems(settings: Settings, size: ModelSize, output: Path) -> Iterator[str]:
    """Too little disk for the checkpoints that are kept, and one more, which is being written."""
    checkpointing, last_step = settings.checkpointing, settings.grpo.max_num_steps or 0
    for_ever = last_step // (checkpointing.keep_every_steps or last_step + 1)
    checkpoints = checkpointing.keep + 1 + for_ever if checkpointing.enabled else 0
    needed = _checkpoint_bytes(settings, size) * checkpoints
    place = next(place for place in (output.absolute(), *output.absolute().parents) if place.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        yield (
            f"{checkpoints} checkpoints need about {needed / _GIB:.2f} GiB, and the disk of {place} has "
            f"{free / _GIB:.2f} GiB free: the run would lose those that do not fit; lower checkpointing.keep, raise "
            "checkpointing.keep_every_steps, or name another output directory"
        )


def warn_of_few_held_out(settings: Settings, held_out: HeldOut, tell: Tell) -> None:
    """Accuracy on a handful of prompts moves by chance more than by training."""
    coarse = []
    for each in settings.sets:
        prompts, data = held_out[each.name], "data" if each.data == settings.data else f"{each.key}.data"
        if prompts >= FEW_HELD_OUT:
            continue
        if prompts >= each.data.validation_size:
            remedy = f"raise {data}.validation_size"
        elif _is_fraction_of_rows(each.data):
            remedy = f"raise {data}.held_out_fraction, or give more data"
        else:
            remedy = "give more held-out data"
        coarse.append(f"{each.name} measures {counted(prompts, 'held-out prompt')}: {remedy}")
    if coarse:
        tell(f"accuracy on fewer than {FEW_HELD_OUT} prompts is coarse; {'; '.join(coarse)}")


def _is_fraction_of_rows(data: DataConfig) -> bool:
    """Whether `held_out_fraction` decides how many rows are held out, and can be raised."""
    task = data.task
    return isinstance(task, FileTaskConfig) and not is_held_out_apart(task) and data.held_out_fraction < 1
