"""Errors, split by who is to blame.

- `ConfigError`: the user, who wrote a configuration that cannot be run.
- `IllegalEvent`, `IllegalSnapshot`: the caller, who fed an event that the state cannot take, or a snapshot that no core
  wrote.
- `SamplerError`: a custom sampler.
- `InvariantBroken`: evenstep itself.
- `LimitReached` and its kinds: nobody; the run went past a limit that its configuration sets.
"""


class EvenstepError(Exception):
    """The base of every error that evenstep raises on purpose."""


class ConfigError(EvenstepError, ValueError):
    """The configuration cannot be run. The message says what, why and what to set instead."""


class IllegalSnapshot(ConfigError):
    """The caller gave a snapshot that no core wrote, or whose format this evenstep does not read. Nothing has begun."""


class IllegalEvent(EvenstepError):
    """The caller fed an event that this state cannot take. Nothing has changed."""


class LateAnswer(IllegalEvent):
    """An answer for an attempt that is over (D2). Nothing has changed; callers count these and go on."""


class SamplerError(EvenstepError):
    """A custom sampler raised, or returned something that the rules forbid."""


class InvariantBroken(EvenstepError):
    """A rule does not hold. This is a defect of evenstep, never of its user; please report it."""


class LimitReached(EvenstepError):
    """The run was stopped by a limit of its configuration."""


class BudgetExceeded(LimitReached):
    """More prompts were given up on than the drop budgets allow (L7)."""


class BelowFloor(LimitReached):
    """A step lost more groups than `min_step_batch_fraction` allows (L6)."""


class SearchExceeded(LimitReached):
    """Dynamic sampling filtered more groups for a step than `dynamic_sampling_max_gen_batches` allows (L8)."""


class Stalled(LimitReached):
    """Nothing progressed for `stall_timeout_s` (W2)."""


class Deadlocked(Stalled):
    """The run can provably never go on, deadlocked or livelocked, and `on_deadlock` is stop (W2)."""
