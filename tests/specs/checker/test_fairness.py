"""`eventually`: which endless runs fairness allows, and that a counterexample is a lasso."""

from fsm.machines.table import Fairness
from specs.checker.explore import HOLDS, VIOLATED
from tests.specs.checker.toy_models import END, ENDS, find, toy

WEAK, STRONG = Fairness.WEAK, Fairness.STRONG

ALWAYS_POSSIBLE = {(0, "spin"): 1, (1, "back"): 0, (0, "leave"): END, (1, "leave"): END}
"""A cycle that `leave` is possible all along."""
NOW_AND_THEN = {(0, "spin"): 1, (1, "back"): 0, (0, "leave"): END}
"""A cycle that `leave` is possible in one place of."""


def lasso(result):
    names = [answer.name for answer in result.counterexample]
    return names[: result.cycle_start], names[result.cycle_start :]


def test_a_cycle_that_nothing_must_leave_is_a_counterexample():
    result = find(toy(ALWAYS_POSSIBLE, {"spin": WEAK, "back": WEAK}), ENDS)

    assert (result.verdict, result.broken, lasso(result)) == (VIOLATED, "ends", ([], ["spin", "back"]))


def test_weak_fairness_leaves_a_cycle_that_it_can_leave_all_along():
    assert find(toy(ALWAYS_POSSIBLE, {"leave": WEAK}), ENDS).verdict == HOLDS


def test_weak_fairness_does_not_leave_a_cycle_that_it_can_leave_now_and_then():
    result = find(toy(NOW_AND_THEN, {"leave": WEAK, "back": WEAK}), ENDS)

    assert (result.broken, lasso(result)) == ("ends", ([], ["spin", "back"]))


def test_strong_fairness_leaves_a_cycle_that_it_can_leave_now_and_then():
    assert find(toy(NOW_AND_THEN, {"leave": STRONG, "back": WEAK}), ENDS).verdict == HOLDS


def test_a_run_may_stay_where_it_is_for_ever_unless_fairness_asks_for_an_answer():
    stays = find(toy({(0, "on"): 1, (1, "leave"): END}, {"on": WEAK}), ENDS)

    assert (stays.broken, lasso(stays)) == ("ends", (["on"], []))
    assert stays.cycle_start == len(stays.counterexample)
    assert find(toy({(0, "on"): 1, (1, "leave"): END}, {"on": WEAK, "leave": WEAK}), ENDS).verdict == HOLDS


def test_an_answer_that_changes_nothing_is_staying_where_one_is():
    stays = find(toy({(0, "again"): 0, (0, "leave"): END}, {"again": WEAK}), ENDS)

    assert (stays.broken, lasso(stays)) == ("ends", ([], []))


def test_no_cycle_has_an_answer_that_every_run_has_finitely_often():
    ways = {(0, "retry"): 1, (1, "back"): 0, (0, "leave"): END}
    fairness = {"leave": WEAK, "back": WEAK}

    assert find(toy(ways, fairness), ENDS).broken == "ends"
    assert find(toy(ways, fairness, finite=("retry",)), ENDS).verdict == HOLDS


def test_a_cycle_goes_out_of_its_way_to_keep_every_duty():
    ways = {
        (0, "on"): 1, (1, "spin"): 2, (2, "spin"): 1, (1, "detour"): 3, (3, "back"): 1,
        (1, "leave"): END, (2, "leave"): END, (3, "stop"): END,
    }  # fmt: skip
    result = find(toy(ways, {"on": WEAK, "leave": WEAK, "back": WEAK}), ENDS)

    stem, cycle = lasso(result)
    assert (result.broken, stem) == ("ends", ["on"])
    assert {"detour", "back"} <= set(cycle), "only at place 3 is it impossible to leave"


def test_the_rest_of_a_component_is_looked_through_where_strong_fairness_takes_a_part_of_it_away():
    ways = {
        (0, "a"): 1, (1, "b"): 2, (2, "c"): 1, (1, "d"): 0, (0, "leave"): END,
    }  # fmt: skip
    result = find(toy(ways, {"leave": STRONG, "a": WEAK, "b": WEAK, "c": WEAK}), ENDS)

    assert (result.broken, lasso(result)) == ("ends", (["a"], ["b", "c"]))
