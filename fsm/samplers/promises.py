"""What a sampler promises about its answers.

No other code asks which class a sampler is. It reads these promises: `evenstep check` explores whether they are kept,
setup words its refusals by them, and a snapshot records the one that a resume relies on. A sampler declares a promise
as a class attribute or a property.

A promise counts for the methods that stand beside it. A subclass that overrides `select`, for example, drops what its
base class promised about `select`, until it declares that again. None promises nothing.
"""

from enum import Enum
from typing import NamedTuple

from fsm.errors import ConfigError

NO_LIMIT = 1 << 62
"""As `max_lead_versions`: dispatch may lead the trainer by any number of batches."""


class Stamp(Enum):
    """What a batch is stamped with when it is admitted."""

    NOTHING = "nothing"
    TARGET_STEP = "target step"
    """The number of the batch, which is the step that trains it (A2)."""
    BUCKET = "bucket"
    """The version at admission (D3)."""


class Eligible(Enum):
    """Which ready groups may be selected (S2). A chunk is selected as soon as enough of these are ready (S1)."""

    ANY = "any"
    STAMPED = "stamped"
    """Those whose target step is the step being trained."""
    OLDEST_BUCKET = "oldest bucket"
    """Those of the oldest bucket that has a group queued, in flight or ready. Such a sampler cannot lose a group."""
    FRESH = "fresh"
    """Those whose staleness is within `staleness_bound`."""


class SelectionOrder(Enum):
    """In which order eligible groups are selected (S3)."""

    DISPATCH = "dispatch"
    FRESHEST_FIRST = "freshest first"


class Promises(NamedTuple):
    """The promises of one sampler; None where it promises nothing."""

    batch_stamp: Stamp | None = None
    max_lead_versions: int | None = None
    """The gate is open exactly while dispatch leads the version by fewer batches than this (A1)."""
    staleness_bound: int | None = None
    """The largest staleness at selection."""
    selects_from: Eligible | None = None
    selection_order: SelectionOrder | None = None
    evicts_stale: bool | None = None
    """True: it evicts and aborts exactly the groups beyond `staleness_bound` (E1). False: none (E2)."""
    charges_losses: bool | None = None
    """True: a lost group is charged to its target step, else to the step being assembled (L3). False: to none."""

    @property
    def keeps_every_slot(self) -> bool:
        """Every admitted slot stays queued, in flight or ready until its group is selected or charged (X2)."""
        return self.evicts_stale is False and self.charges_losses is True


_ABOUT = {
    "batch_stamp": ("admit",),
    "max_lead_versions": ("admit",),
    "staleness_bound": ("admit", "select"),
    "selects_from": ("select",),
    "selection_order": ("select",),
    "evicts_stale": ("evict", "should_abort_inflight"),
    "charges_losses": ("charge_step_for_lost_group",),
}
"""Per promise the methods that it is about."""

_KINDS = {
    "batch_stamp": Stamp,
    "selects_from": Eligible,
    "selection_order": SelectionOrder,
    "evicts_stale": bool,
    "charges_losses": bool,
}


def promises_of(sampler: object, name: str) -> Promises:
    """What a sampler promises. Raises ConfigError with the sampler's name where a promise has the wrong type."""
    kept = {promise: getattr(sampler, promise) for promise in _ABOUT if _counts(sampler, promise)}
    for promise, value in kept.items():
        kind = _KINDS.get(promise)
        if value is None or (isinstance(value, kind) if kind else type(value) is int and value >= 0):
            continue
        allowed = ", ".join(_choices(kind)) if kind else "a whole number of 0 or more"
        raise ConfigError(f"sampler {name}: {promise} is {value!r}; allowed: {allowed}, or None for no promise")
    found = Promises(**kept)
    if found.staleness_bound is not None:
        return found
    # These two are about the bound.
    return found._replace(
        selects_from=None if found.selects_from is Eligible.FRESH else found.selects_from,
        evicts_stale=None if found.evicts_stale else found.evicts_stale,
    )


def _choices(kind: type[Enum | bool]) -> list[str]:
    return [str(member) for member in kind] if issubclass(kind, Enum) else ["True", "False"]


def _counts(sampler: object, promise: str) -> bool:
    """The sampler declares the promise no further from itself than the methods that it is about."""
    places = [getattr(sampler, "__dict__", {}), *(vars(kind) for kind in type(sampler).__mro__)]

    def distance(name: str) -> int:
        return next((number for number, place in enumerate(places) if name in place), len(places))

    declared = distance(promise)
    return declared < len(places) and all(declared <= distance(method) for method in _ABOUT[promise])
