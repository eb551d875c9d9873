"""What is to be proven, and the result."""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple


class ProofVerdict(Enum):
    """The solver's answer about an obligation. Only CONFIRMED is a proof."""

    CONFIRMED = "confirmed"
    """On every path, and at least one meets what is assumed."""
    REFUTED = "refuted"
    """With the arguments for which the claim is false."""
    RAISED = "raised"
    """With the arguments for which an exception came instead of an answer."""
    VACUOUS = "vacuous"
    """No arguments meet what is assumed, so nothing is claimed."""
    UNKNOWN = "unknown"
    """Not within the time, or not by this solver."""


class Obligation(NamedTuple):
    """For all `arguments`: if `applies`, then `holds`. Both take the arguments in order, and are pure."""

    name: str
    says: str
    """The claim as an English sentence."""
    implements: tuple[str, ...]
    """The rules that it is about (A1 … X4)."""
    arguments: Mapping[str, type]
    """Symbolic, without bounds: int, float or an IntEnum."""
    applies: Callable[..., bool]
    holds: Callable[..., bool]


class WrongTwin(NamedTuple):
    """The same obligation about a function or a rule that is seeded with a fault."""

    fault: str
    obligation: Obligation


class ProofCase(NamedTuple):
    """An obligation and its twins."""

    obligation: Obligation
    twins: tuple[WrongTwin, ...]


class Proof(NamedTuple):
    """The result for an obligation, or for one of its twins."""

    name: str
    """Of the obligation."""
    implements: tuple[str, ...]
    verdict: ProofVerdict
    seconds: float
    counterexample: str = ""
    """The arguments, if the verdict is REFUTED or RAISED."""
    fault: str = ""
    """Of the twin; '' for the obligation itself."""
    harmless: str = ""
    """Why the fault breaks nothing that the obligation claims; '' if it must break something."""

    @property
    def is_as_expected(self) -> bool:
        """CONFIRMED; of a twin that is not harmless, that a wrong answer, no exception or timeout, gave it away."""
        must_break = self.fault and not self.harmless
        return self.verdict is (ProofVerdict.REFUTED if must_break else ProofVerdict.CONFIRMED)
