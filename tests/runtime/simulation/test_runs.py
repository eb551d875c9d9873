"""Simulated runs: none is wrong, each is replayed from its seed, and they meet every fault."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fsm.errors import BelowFloor
from runtime.simulation.plan import SAMPLERS, Fault, plan_of
from runtime.simulation.runs import Story, simulate
from runtime.simulation.table import Totals
from runtime.transport.answers import Order
from specs.evidence.mutants.mutant import Mutant, edited, in_place

RUNS = 200
SEEDS = [
    line.split(maxsplit=2)
    for line in Path(__file__).with_name("seeds.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


@pytest.fixture(scope="module")
def stories() -> list[Story]:
    return [simulate(plan_of(seed)) for seed in range(RUNS)]


def test_no_run_is_wrong(stories: list[Story]) -> None:
    """X4, C2, L5, D2, W1, W2: see `runtime.simulation.witness`."""
    assert [(story.plan.seed, story.wrong) for story in stories if story.wrong] == []
    allowed = ("completed", "stopped")
    assert [story.outcome for story in stories if not story.outcome.startswith(allowed)] == []


def test_they_meet_every_fault_under_every_sampler(stories: list[Story]) -> None:
    totals = Totals()
    for story in stories:
        totals.add(story)
    for sampler in SAMPLERS:
        assert totals.by_sampler[sampler].lives > totals.by_sampler[sampler].runs, "controllers have crashed"
        assert totals.by_sampler[sampler].outcomes["completed"] > RUNS / 20
    met = {fault for tally in totals.by_sampler.values() for fault in tally.faults}
    assert met == set(Fault)
    assert f"stopped: {BelowFloor.__name__}" in totals.by_sampler["in_order"].outcomes


@pytest.mark.parametrize(("seed", "sampler", "found"), SEEDS, ids=[seed for seed, *_ in SEEDS])
def test_a_seed_that_has_found_a_bug_finds_none_today(seed: str, sampler: str, found: str) -> None:
    assert simulate(plan_of(int(seed), sampler)).wrong == [], found


TRACED = """
from runtime.simulation.plan import plan_of
from runtime.simulation.runs import simulate
print(*(simulate(plan_of(seed), traced=True).digest for seed in range(12)))
"""


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    """Whatever the order of sets is, which the hash seed decides."""

    def digests(hash_seed: str) -> list[str]:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [sys.executable, "-c", TRACED], env=environment, capture_output=True, text=True, check=True
        ).stdout.split()

    found = digests("1")
    assert found == digests("2")
    assert len(set(found)) == 12
    again = [simulate(plan_of(seed), traced=True).digest for seed in range(12)]
    assert again == found


def test_a_run_that_waits_for_ever_is_a_hang_and_says_what_it_waits_for() -> None:
    edits = edited(
        {
            "runtime.control.pumps.sync:SyncPump._sync": {
                "if self.control.apply(SyncFinished(version)):": "if version < 0:"
            }
        }
    )
    with in_place(Mutant("a sync is not told to be done", "", "", edits=edits)):
        stories = [simulate(plan_of(seed)) for seed in range(12)]
    hangs = [story for story in stories if story.outcome == "hang"]
    assert hangs
    assert any("generation workers must load the weights of version 1" in story.wrong[-1] for story in hangs)


def test_an_order_that_nobody_asked_for_is_found() -> None:
    """The witness sees what the pumps do, whoever makes them."""
    plan = plan_of(1)

    def orders_twice(life: object) -> None:
        life.witness.exchanges("generation-0", [Order((99, 99, 0), 0)])  # type: ignore[attr-defined, arg-type]

    assert "nobody has asked for Order" in simulate(plan, on_event=orders_twice).wrong[0]
