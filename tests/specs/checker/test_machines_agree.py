"""Production's `transitions` machines do what the checker's function does, on every state and rule of a suite."""

import pytest

from fsm.machines.catalog import TABLES
from fsm.machines.trainer import TRAINER, Trainer, TrainerContext, TrainerState
from specs.check.cases import laws_in
from specs.checker.explore import HOLDS, explore
from specs.evidence.mutants.portfolio import PORTFOLIO
from specs.properties.kinds import Properties
from tests.specs.checker.machine_agreement import Agreement, Disagreement
from tests.specs.checker.small_runs import smoke


def test_every_value_and_context_that_the_smoke_suite_reaches_is_moved_alike_by_machine_and_rules() -> None:
    agreement = Agreement()
    for cell in smoke():
        laws = laws_in(cell.case)._replace(fire=agreement)
        assert explore(laws, cell.case.world, Properties()).verdict == HOLDS, cell.name
    assert len(agreement.compared) > 200


def test_every_rule_is_fired_by_its_machine_and_moves_alike() -> None:
    agreement = Agreement()
    for scope in PORTFOLIO:
        laws = scope.laws()._replace(fire=agreement)
        assert explore(laws, scope.world, Properties(), model=scope.model).broken is None, scope.name
    assert agreement.fired == {(table.name, rule.name) for table in TABLES for rule in table.rules}


def test_a_machine_that_forgets_a_guard_is_told() -> None:
    agreement = Agreement()
    machine, _ = agreement._machines["Trainer"]
    for transition in machine.events["train_chunk"].transitions["ASSEMBLING"]:
        transition.conditions.clear()
    with pytest.raises(Disagreement, match="Trainer, train_chunk"):
        agreement(TRAINER, "chunk_trained", Trainer(TrainerState.ASSEMBLING), TrainerContext())
