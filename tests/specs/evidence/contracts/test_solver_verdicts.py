"""The solver says CONFIRMED of nothing but a proof, and a report that lacks one is no pass."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_type_hints

import pytest

from fsm.machines.catalog import ALL_TABLES
from specs.evidence.contracts import __main__ as command
from specs.evidence.contracts import prove as proving
from specs.evidence.contracts.obligation import Obligation, ProofCase, ProofVerdict, WrongTwin
from specs.evidence.contracts.rules import keeps
from specs.evidence.contracts.solver import challenge, prove


def obligation(
    holds: Callable[..., bool], applies: Callable[..., bool] = lambda *_: True, arguments: str = "size charged"
) -> Obligation:
    return Obligation("trial", "a trial", ("L5",), dict.fromkeys(arguments.split(), int), applies, holds)


def verdict_of(subject: Obligation, timeout_s: float = 20.0) -> ProofVerdict:
    return prove(subject, per_condition_timeout=timeout_s).verdict


def test_what_follows_is_confirmed() -> None:
    assert verdict_of(obligation(lambda size, charged: size - charged + charged == size)) is ProofVerdict.CONFIRMED


def test_a_single_exception_among_all_integers_is_found_and_named() -> None:
    proof = prove(obligation(lambda size, charged: size != 123_456 or charged != -7), per_condition_timeout=20.0)
    assert proof.verdict is ProofVerdict.REFUTED
    assert proof.counterexample == "size=123456, charged=-7"


def test_what_assumes_the_impossible_is_vacuous_instead_of_proven() -> None:
    assert verdict_of(obligation(lambda *_: True, lambda size, charged: size < charged < size)) is ProofVerdict.VACUOUS


def test_an_exception_in_the_claim_or_in_what_is_assumed_is_no_proof() -> None:
    def divides(size: int, charged: int) -> bool:
        return size // charged * charged <= size or charged < 0

    assert verdict_of(obligation(divides)) is ProofVerdict.RAISED
    assert verdict_of(obligation(lambda *_: True, divides)) is ProofVerdict.RAISED


def test_what_the_time_does_not_suffice_for_is_unknown() -> None:
    def terms(*given: int) -> bool:
        return min(given) <= max(given)

    many = obligation(terms, arguments=" ".join(f"groups_{number}" for number in range(12)))
    assert verdict_of(many, timeout_s=0.3) is ProofVerdict.UNKNOWN


def test_a_twin_that_raises_does_not_count_as_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*_: int) -> bool:
        raise ZeroDivisionError

    right = obligation(lambda *_: True)
    seeded(monkeypatch, ProofCase(right, (WrongTwin("it raises", right._replace(holds=raises)),)))
    [refutation] = proving.refute_all()
    assert refutation.verdict is ProofVerdict.RAISED
    assert not refutation.is_as_expected


def test_an_invariant_that_a_rule_does_not_keep_is_refuted_through_its_table() -> None:
    """A stricter invariant: a step is never made up of charges alone. `next→full` does not keep it."""
    table = next(each for each in ALL_TABLES if each.name == "StepAssembly")
    [rule] = [each for each in table.rules if each.name == "next→full"]
    holds = table.invariant

    def stricter(step: Any, context: Any) -> bool:
        return holds(step, context) and (step.status is not rule.dest or step.selected > 0)

    stricter.__annotations__ = get_type_hints(holds)
    broken = replace(table, invariant=stricter)
    proof = challenge(keeps(broken, rule), per_condition_timeout=20.0)
    assert proof.verdict is ProofVerdict.REFUTED
    assert proof.counterexample.startswith("status=closed")


def seeded(monkeypatch: pytest.MonkeyPatch, *all_cases: ProofCase) -> None:
    found = {case.obligation.name: case for case in all_cases}
    monkeypatch.setattr(proving, "cases", lambda: found)


TRUE = obligation(lambda *_: True)
FALSE = obligation(lambda size, charged: size >= charged)


@pytest.mark.parametrize(
    ("case", "exit_code"),
    [
        pytest.param(ProofCase(TRUE, (WrongTwin("a fault", FALSE),)), 0, id="all is as it must be"),
        pytest.param(ProofCase(FALSE, (WrongTwin("a fault", FALSE),)), 1, id="an obligation is refuted"),
        pytest.param(ProofCase(TRUE, (WrongTwin("a fault", TRUE),)), 1, id="a wrong twin is confirmed"),
    ],
)
def test_the_command_fails_unless_all_is_confirmed_and_every_twin_refuted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: ProofCase, exit_code: int
) -> None:
    seeded(monkeypatch, case)
    assert command.main(jobs=1) == exit_code
    printed = capsys.readouterr().out
    assert "trial" in printed
    assert ("1 of 1 obligations confirmed" in printed) == (case.obligation is TRUE)
