"""docs/generated/mutation.md lists today's mutants and the property that kills each; a sample of its rows is tried."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from fsm.machines.catalog import ALL_TABLES
from fsm.machines.prompt_group import PROMPT_GROUP, TRANSFER
from fsm.machines.table import unchanged
from specs.checker.explore import HOLDS, VIOLATED, explore
from specs.evidence.mutants import document
from specs.evidence.mutants.document import EXPLAINED
from specs.evidence.mutants.faults import FAULTS
from specs.evidence.mutants.matrix import BOUNDS, all_mutants, core_coverage, properties_in, proven_the_same
from specs.evidence.mutants.mutant import hunt, in_place
from specs.evidence.mutants.portfolio import PORTFOLIO


class Claim(NamedTuple):
    """A row of the document: a mutant that is killed."""

    mutant: str
    by: str
    scope: str
    events: int


def claims(text: str) -> list[Claim]:
    """The kills that a document claims."""
    return [Claim(name, by, scope, int(events)) for name, by, _, scope, events in document.cells(text, "mutant")]


def survivors(text: str) -> list[str]:
    """The survivors that a document lists."""
    return [row[0] for row in document.cells(text, "survivor")]


TEXT = (Path(__file__).parents[3] / "docs/generated/mutation.md").read_text(encoding="utf-8")
CLAIMS = claims(TEXT)
MUTANTS = {mutant.name: mutant for mutant in all_mutants()}
SCOPES = {scope.name: scope for scope in PORTFOLIO}
EVERY = 11
"""One in so many rows of the document is tried."""


@pytest.fixture(scope="module")
def coverage():
    return core_coverage()


def test_no_two_mutants_share_a_name():
    assert len(MUTANTS) == len(all_mutants())


def test_every_guard_update_and_rule_of_every_table_has_its_mutants():
    guards = updates = rules = 0
    for table in ALL_TABLES:
        for rule in table.rules:
            if table is PROMPT_GROUP and rule.event not in TRANSFER:
                continue
            rules += 1
            guards += len(rule.guards)
            updates += rule.update is not unchanged
    of_tables = [name for name, mutant in MUTANTS.items() if mutant.where in {table.name for table in ALL_TABLES}]

    assert sum(name.endswith(" dropped") for name in of_tables) == guards
    assert sum(name.endswith(" negated") for name in of_tables) == guards
    assert sum(name.endswith("update frozen") for name in of_tables) == updates
    assert sum(name.endswith("taken out") for name in of_tables) == rules
    assert len(of_tables) == 2 * guards + updates + rules


def test_the_document_lists_exactly_todays_mutants_and_faults():
    listed = [*(claim.mutant for claim in CLAIMS), *survivors(TEXT)]

    assert sorted(listed) == sorted(MUTANTS), "run `make mutants`"
    assert document.faults(TEXT) == [fault.mutant.name for fault in FAULTS], "run `make mutants`"


def test_every_survivor_is_explained_in_its_own_sentence_and_nothing_else_is():
    assert set(survivors(TEXT)) == set(EXPLAINED)
    assert "unexplained" not in TEXT


def test_the_totals_are_those_of_the_rows():
    totals = re.search(r"(\d+) mutants: (\d+) killed, (\d+) survive", TEXT)

    assert totals is not None
    expected = (len(MUTANTS), len(CLAIMS), len(EXPLAINED))
    assert tuple(map(int, totals.groups())) == expected


@pytest.mark.parametrize("claim", [pytest.param(claim, id=claim.mutant) for claim in CLAIMS[::EVERY]])
def test_a_sampled_mutant_is_killed_as_the_document_says(claim):
    scope = SCOPES[claim.scope]

    result = hunt(MUTANTS[claim.mutant], scope, properties_in(scope), BOUNDS)

    assert (result.verdict, result.broken, len(result.counterexample)) == (VIOLATED, claim.by, claim.events)


def test_the_core_holds_in_every_run_of_the_portfolio_and_fires_every_rule_that_a_run_can_fire(coverage):
    taken = {rule for of_scope in coverage.values() for rule, times in of_scope.taken.items() if times}
    never = {
        (table.name, rule.name) for table in ALL_TABLES for rule in table.rules if (table.name, rule.name) not in taken
    }

    assert never == {
        ("PromptGroup", "start→in_flight"),  # moves no column
        ("PromptGroup", "regenerate→data"),  # moves every column at once
        ("ShortfallLedger", "resume→even"),  # a ledger begins with its first charge
        ("SparePool", "stock→spent"),  # what was just stocked is not spent
    }


def test_coverage_proves_the_survivors_that_the_document_calls_proven(coverage):
    said = {row[0] for row in document.cells(TEXT, "survivor") if row[2] == "proven"}

    assert said == proven_the_same(list(MUTANTS.values()), coverage) & set(EXPLAINED)
    assert not proven_the_same(list(MUTANTS.values()), coverage) - set(EXPLAINED)


def test_a_mutant_leaves_nothing_behind():
    scope = PORTFOLIO[0]
    for mutant in MUTANTS.values():
        with in_place(mutant):
            pass

    result = explore(scope.laws(), scope.world, properties_in(scope), model=scope.model, bounds=BOUNDS)

    assert result.verdict == HOLDS
