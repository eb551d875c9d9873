"""CrossHair, through its API: one verdict a question.

Its contracts on classes and its command are not used: the first confirm wrong code, and the second exits with 0 on
"not confirmed". What an obligation assumes is checked in the body and not as a precondition, since CrossHair takes an
exception in that for "does not apply". Whether any arguments meet the assumption is asked separately.
"""

import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from time import perf_counter

from crosshair.condition_parser import POSTCONDITION, ConditionExpr, Conditions
from crosshair.core import ConditionCheckable
from crosshair.core_and_libs import AnalysisMessage, MessageType, run_checkables
from crosshair.fnutil import FunctionInfo
from crosshair.options import DEFAULT_OPTIONS, AnalysisOptionSet

from specs.evidence.contracts.obligation import Obligation, Proof, ProofVerdict

_VERDICTS = {
    MessageType.CONFIRMED: ProofVerdict.CONFIRMED,
    MessageType.POST_FAIL: ProofVerdict.REFUTED,
    MessageType.EXEC_ERR: ProofVerdict.RAISED,
    MessageType.CANNOT_CONFIRM: ProofVerdict.UNKNOWN,
}


def prove(obligation: Obligation, *, per_condition_timeout: float) -> Proof:
    """Whether the claim follows, and whether anything meets what is assumed: else it is VACUOUS.

    `per_condition_timeout` is in seconds of processor time, for each of the two questions.
    """
    proof = challenge(obligation, per_condition_timeout=per_condition_timeout)
    if proof.verdict is not ProofVerdict.CONFIRMED:
        return proof
    began = perf_counter()

    def never_applies(*given: object) -> bool:
        return not obligation.applies(*given)

    verdict, _ = _ask(never_applies, obligation, per_condition_timeout)
    seconds = proof.seconds + perf_counter() - began
    if verdict is ProofVerdict.REFUTED:
        return proof._replace(seconds=seconds)
    return proof._replace(
        verdict=ProofVerdict.VACUOUS if verdict is ProofVerdict.CONFIRMED else verdict, seconds=seconds
    )


def challenge(obligation: Obligation, *, per_condition_timeout: float) -> Proof:
    """Whether the claim follows from what is assumed. A wrong twin is asked only this."""
    began = perf_counter()

    def follows(*given: object) -> bool:
        return not obligation.applies(*given) or obligation.holds(*given)

    verdict, counterexample = _ask(follows, obligation, per_condition_timeout)
    return Proof(obligation.name, obligation.implements, verdict, perf_counter() - began, counterexample)


def _ask(always: Callable[..., bool], obligation: Obligation, timeout: float) -> tuple[ProofVerdict, str]:
    """Whether `always` is true of all arguments, and those for which it is not."""
    signature = inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
            for name, kind in obligation.arguments.items()
        ],
        return_annotation=bool,
    )
    condition = ConditionExpr(POSTCONDITION, _returned, __file__, 1, obligation.says)
    conditions = Conditions(always, always, [], [condition], frozenset(), signature, None, [], _described)
    options = DEFAULT_OPTIONS.overlay(
        AnalysisOptionSet(analysis_kind=(), per_condition_timeout=timeout, per_path_timeout=timeout, report_all=True)
    )
    return _verdict(run_checkables([ConditionCheckable(FunctionInfo.from_fn(always), options, conditions)]))


def _returned(bindings: Mapping[str, object]) -> bool:
    return bool(bindings["__return__"])


def _described(given: inspect.BoundArguments, _: object, __: object) -> tuple[str, str]:
    """A counterexample as text: the arguments; "None" has CrossHair leave out what was returned."""
    words = {
        name: value.name.lower() if isinstance(value, Enum) else repr(value) for name, value in given.arguments.items()
    }
    return ", ".join(f"{name}={word}" for name, word in words.items()), "None"


def _verdict(messages: list[AnalysisMessage]) -> tuple[ProofVerdict, str]:
    """The verdict of one message; any other number of messages is no proof."""
    if len(messages) != 1:
        return ProofVerdict.UNKNOWN, ""
    [message] = messages
    verdict = _VERDICTS.get(message.state, ProofVerdict.UNKNOWN)
    if verdict is ProofVerdict.REFUTED:
        return verdict, message.message.partition("when calling ")[2]
    return verdict, message.message if verdict is ProofVerdict.RAISED else ""
