"""The configuration matrix: what is in it, and a part of it that is gone through."""

from collections import Counter

import pytest

from specs.check.cases import ScopeName, laws_in
from specs.checker.explore import HOLDS, UNDETERMINED, VIOLATED
from specs.engine.search import Bounds
from specs.evidence.matrix import REFUSED_AT_SETUP, SAMPLERS, matrix, run_cell, run_cells
from specs.model import CrashFrom
from tests.specs.checker.small_runs import smoke

SMOKE = smoke()


@pytest.fixture(scope="module", params=list(ScopeName))
def cells(request):
    return matrix(request.param)


def test_the_matrix_has_every_combination_once(cells):
    names = Counter(cell.name for cell in cells)

    minimums = 2 + 3 + 4
    assert len(cells) == len(SAMPLERS) * 2 * 2 * 3 * minimums * 2
    assert set(names.values()) == {1}


def test_what_is_refused_is_what_setup_refuses_and_comes_last(cells):
    refused = [cell for cell in cells if cell.refused is not None]

    assert cells[-len(refused) :] == refused
    assert {tuple(cell.name.split()[:3]) for cell in refused} == {
        ("in_order", "shrink", "filters"),
        ("ready_first", "shrink", "filters"),
        ("weight_fifo", "shrink", "filters"),
        ("weight_fifo", "replace", "filters"),
        ("weight_fifo", "replace", "keeps"),
    }
    assert run_cell(refused[0], Bounds()).verdict == REFUSED_AT_SETUP


def test_every_cell_has_data_for_its_window_and_a_step(cells):
    for cell in cells:
        if cell.refused is None:
            limits = laws_in(cell.case).limits
            batches = limits.prompts_per_epoch // limits.size
            assert batches >= max(1, cell.case.scaled.window), cell.name
            assert not limits.uses_pool or limits.prompts_per_epoch >= 2 * limits.size, cell.name


@pytest.mark.parametrize("cell", SMOKE, ids=lambda cell: " ".join(cell.name.split()))
def test_no_answer_of_the_world_at_any_time_breaks_a_property_of_the_matrix(cell):
    line = run_cell(cell, Bounds(states=60_000))

    assert (line.verdict, line.broken) == (HOLDS, None), line
    assert cell.case.world.crash is CrashFrom.OWN_SNAPSHOT


def test_the_smoke_part_has_every_sampler_and_both_ways_of_losing_groups():
    assert {cell.name.split()[0] for cell in SMOKE} == set(SAMPLERS)
    assert {cell.name.split()[1] for cell in SMOKE} == {"shrink", "replace"}
    assert {cell.name.split()[2] for cell in SMOKE} == {"filters", "keeps"}


def test_a_cell_that_hits_a_bound_is_undetermined():
    [line] = run_cells(SMOKE[:1], Bounds(seconds=0.0), jobs=1)

    assert line.verdict == UNDETERMINED
    assert "more than 0 s" in line.text
    assert VIOLATED not in line.text
