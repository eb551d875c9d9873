"""From configuration to a sampler: a built-in one by name, a custom one by `module:ClassName`."""

import importlib
import importlib.util
import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from fsm.config.blocks import CustomConfig, RunConfig
from fsm.config.values import SamplerTraits
from fsm.config.wording import nearest
from fsm.errors import ConfigError
from fsm.samplers.builtin import BUILTIN
from fsm.samplers.promises import promises_of
from fsm.samplers.protocol import MOST_LABELS, PromptGroupSampler, accounting_of, labels_of

_REQUIRED = (
    "admit", "select", "evict", "should_abort_inflight", "is_on_policy", "required_buffer_capacity"
)  # fmt: skip
_ACCOUNTING = ("uses_replacement_pool", "closes_short_at_exhaustion", "charge_step_for_lost_group")
_LABELLING = ("labels", "label")
WINDOW_OPTIONS = ("max_lookahead_versions", "max_staleness_versions")
"""What the option that sets a sampler's window may be called."""


def build_sampler(config: RunConfig) -> PromptGroupSampler:
    """The sampler of a run. Raises ConfigError for a custom one that cannot be loaded or lacks something."""
    sampler = config.async_rl.sampler
    if isinstance(sampler, CustomConfig):
        return load_custom(sampler)
    built_in: Callable[..., Any] = BUILTIN[sampler.name]
    made: PromptGroupSampler = built_in(**sampler.model_dump(exclude={"name"}))
    return made


def sampler_name(config: RunConfig) -> str:
    """The name of a run's sampler in messages and checkpoints."""
    sampler = config.async_rl.sampler
    return f"custom {sampler.target}" if isinstance(sampler, CustomConfig) else sampler.name


def load_custom(config: CustomConfig) -> PromptGroupSampler:
    """An instance of the class that `target` names, made with the extra keys of its block."""
    where = f"async_rl.sampler.target {config.target}"
    module_name, _, class_name = config.target.partition(":")
    module = imported(module_name, where)
    if class_name not in vars(module):
        classes = [name for name, value in vars(module).items() if inspect.isclass(value)]
        hint = nearest(class_name, classes, f"it has {', '.join(classes) or 'no class'}")
        file = vars(module).get("__file__", "built in")
        raise ConfigError(f"{where}: module {module_name} ({file}) has no {class_name}; {hint}")
    found = vars(module)[class_name]
    if not inspect.isclass(found):
        raise ConfigError(f"{where} is a {type(found).__name__}, not a class")
    missing = [name for name in _REQUIRED if inspect.getattr_static(found, name, None) is None]
    if missing:
        raise ConfigError(
            f"{where} is no PromptGroupSampler: it lacks {', '.join(missing)}. "
            f"Derive it from fsm.samplers.GatedSampler, which has all of them but select"
        )
    return _construct(found, config.options, where)


def imported(name: str, where: str) -> ModuleType:
    """The user's module. Raises ConfigError with the file and line that are to blame, where they are known."""
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as cause:
        if isinstance(cause, ModuleNotFoundError) and f"{name}.".startswith(f"{cause.name}."):
            raise ConfigError(
                f"{where}: module {name} cannot be imported ({cause}). Its folder must be on the Python path: "
                f"run from there, install it, or set PYTHONPATH"
            ) from cause
        raise ConfigError(
            f"{where}: module {name} cannot be imported: {_place(cause, name)}: {type(cause).__name__}: {cause}. "
            f"It must be a module that can be imported without an error; correct it"
        ) from cause


def _place(cause: BaseException, name: str) -> str:
    """Where an import failed: the line of the module's own file, if the import got that far."""
    if isinstance(cause, SyntaxError) and cause.filename is not None:
        return f"{cause.filename}, line {cause.lineno}" if cause.lineno else cause.filename
    machinery = (__file__, importlib.__file__)
    frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if frame.filename not in machinery]
    frames = [frame for frame in frames if not frame.filename.startswith("<frozen importlib")]
    if not frames:
        return _file_of(name)
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    return f"{own[-1].filename}, line {own[-1].lineno}"


def _file_of(name: str) -> str:
    """The file of a module that cannot be compiled."""
    try:
        found = importlib.util.find_spec(name)
    except SyntaxError:
        return "in its package"
    return "in no file" if found is None or found.origin is None else found.origin


@contextmanager
def _refusing(said: str) -> Iterator[None]:
    """Anything that custom code raises becomes a ConfigError, SystemExit too; only a KeyboardInterrupt passes."""
    try:
        yield
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as cause:
        raise ConfigError(f"{said}: {type(cause).__name__}: {cause}") from cause


def _construct(found: type[Any], options: dict[str, Any], where: str) -> PromptGroupSampler:
    with _refusing(f"{where} cannot be asked what its constructor takes"):
        signature = inspect.signature(found)
    try:
        signature.bind(**options)
    except TypeError as cause:
        raise ConfigError(
            f"{where} cannot be made with {sorted(options)}: {cause}; its constructor takes {signature}"
        ) from cause
    with _refusing(f"{where} cannot be made with {options}"):
        sampler = found(**options)
    with _refusing(f"{where} cannot be asked what it is"):
        return _fitting(sampler, where)


def _fitting(sampler: object, where: str) -> PromptGroupSampler:
    """The sampler, if it has all that the protocols ask for. An exception of its own passes."""
    if not isinstance(sampler, PromptGroupSampler):
        raise ConfigError(f"{where} made a {type(sampler).__name__}, which is no PromptGroupSampler")
    _require_whole(sampler, _ACCOUNTING, where)
    _require_whole(sampler, _LABELLING, where)
    labels = labels_of(sampler)
    if type(labels) is not int or not 1 <= labels <= MOST_LABELS:
        raise ConfigError(
            f"{where}: labels is {labels!r}; allowed: a whole number from 1 to {MOST_LABELS}. Each label adds classes, "
            f"so let one stand for a range, of lengths or rewards for example"
        )
    return sampler


def _require_whole(sampler: PromptGroupSampler, names: tuple[str, ...], where: str) -> None:
    """Refuse half of an optional protocol, which would be ignored without a word."""
    absent = [name for name in names if not hasattr(sampler, name)]
    if absent and len(absent) < len(names):
        has = [name for name in names if name not in absent]
        raise ConfigError(
            f"{where} has {', '.join(has)} and lacks {', '.join(absent)}: these count only together. Write all, or "
            f"derive it from fsm.samplers.GatedSampler, which has defaults"
        )


def traits_of(config: RunConfig) -> SamplerTraits | None:
    """The traits of a built-in sampler; None for a custom one, whose class has yet to be loaded."""
    return None if isinstance(config.async_rl.sampler, CustomConfig) else traits(config, build_sampler(config))


def traits(config: RunConfig, sampler: PromptGroupSampler) -> SamplerTraits:
    """What setup must know of a sampler. Raises ConfigError if a custom one answers with a wrong type."""
    name, size = sampler_name(config), config.grpo.num_prompts_per_step
    with _refusing(f"sampler {name}: setup failed"):
        accounting = accounting_of(sampler)
        uses_pool: object = accounting.uses_replacement_pool
        closes_short: object = accounting.closes_short_at_exhaustion
        is_on_policy: object = sampler.is_on_policy
        capacity: object = sampler.required_buffer_capacity(size)
        by_default = getattr(sampler, "default_buffer_capacity", None)
        default: object = None if by_default is None else by_default(size)
        promises = promises_of(sampler, name)
    return SamplerTraits(
        name=name,
        uses_replacement_pool=_boolean(name, "uses_replacement_pool", uses_pool),
        closes_short_at_exhaustion=_boolean(name, "closes_short_at_exhaustion", closes_short),
        is_on_policy=_boolean(name, "is_on_policy", is_on_policy),
        required_buffer_capacity=_capacity(name, "required_buffer_capacity", capacity),
        default_buffer_capacity=_capacity(name, "default_buffer_capacity", default),
        window_option=None if promises.max_lead_versions is None else window_option(sampler),
        promises=promises,
    )


def window_option(sampler: PromptGroupSampler) -> str | None:
    """The option of a sampler's constructor that sets its window, if it has one."""
    takes = inspect.signature(type(sampler)).parameters
    return next((option for option in WINDOW_OPTIONS if option in takes), None)


def _capacity(name: str, method: str, value: object) -> int | None:
    if value is None or (type(value) is int and value >= 0):
        return value
    raise ConfigError(f"sampler {name}: {method} returned {value!r}; allowed: a whole number, or None")


def _boolean(name: str, attribute: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"sampler {name}: {attribute} is {value!r}; allowed: True or False")
    return value
