"""Every obligation that `make test` has time for is confirmed and a wrong twin refuted; `make prove` does all."""

import pytest

from fsm.machines.catalog import ALL_TABLES
from specs.evidence.contracts.obligation import ProofVerdict
from specs.evidence.contracts.prove import HARMLESS, cases, prove_all, prove_one, refute, refute_all

SLOW = (" is unambiguous", " is complete", "= 55%", "failed_attempts = 2", "failed_attempts = 5")
"""Endings of what is left to `make prove`."""

QUICK = [name for name in cases() if not name.endswith(SLOW)]


def test_every_rule_of_every_table_has_an_obligation() -> None:
    """One obligation a rule."""
    assert {f"{table.name}.{rule.name}" for table in ALL_TABLES for rule in table.rules} <= set(cases())


def test_events_that_several_rules_of_one_state_share_are_proven_to_be_unambiguous_and_complete() -> None:
    shared = {
        f"{table.name}.{event}"
        for table in ALL_TABLES
        for (event, _), rules in table.by_event.items()
        if len(rules) > 1
    }
    assert shared == {name.removesuffix(" is complete") for name in cases() if name.endswith(" is complete")}
    assert shared == {name.removesuffix(" is unambiguous") for name in cases() if name.endswith(" is unambiguous")}


def test_every_obligation_has_a_twin_that_must_be_refuted() -> None:
    for name, case in cases().items():
        assert [twin.fault for twin in case.twins if (name, twin.fault) not in HARMLESS], f"{name} has none"


def test_every_guard_of_every_rule_is_dropped_in_some_twin() -> None:
    for table in ALL_TABLES:
        for rule in table.rules:
            faults = {twin.fault for twin in cases()[f"{table.name}.{rule.name}"].twins}
            assert {f"without {guard.__name__.lstrip('_')}" for guard in rule.guards} <= faults


@pytest.mark.parametrize("name", QUICK)
def test_an_obligation_is_confirmed_and_its_first_wrong_twin_refuted(name: str) -> None:
    proof = prove_one(name)
    assert proof.verdict is ProofVerdict.CONFIRMED, proof
    assert proof.implements == cases()[name].obligation.implements
    number = next(i for i, twin in enumerate(cases()[name].twins) if (name, twin.fault) not in HARMLESS)
    refutation = refute(name, number)
    assert refutation.verdict is ProofVerdict.REFUTED, refutation
    assert refutation.counterexample, "a refutation without arguments shows nothing"


@pytest.mark.parametrize(("name", "fault"), HARMLESS)
def test_a_fault_that_is_said_to_be_harmless_is_one(name: str, fault: str) -> None:
    """A reason that no longer holds would excuse a twin that should be refuted."""
    [number] = [i for i, twin in enumerate(cases()[name].twins) if twin.fault == fault]
    refutation = refute(name, number)
    assert refutation.verdict is ProofVerdict.CONFIRMED
    assert refutation.is_as_expected


def test_several_processes_come_to_the_verdicts_of_one() -> None:
    names = ["Trainer.step_finished→syncing", "want", "Run.stop→stopped"]
    alone, together = prove_all(names), prove_all(names, jobs=2)
    assert [proof.name for proof in together] == names
    assert [proof._replace(seconds=0.0) for proof in alone] == [proof._replace(seconds=0.0) for proof in together]
    assert [each.fault for each in refute_all(names, jobs=2)] == [
        twin.fault for name in names for twin in cases()[name].twins
    ]
