"""What a custom sampler answers once it runs: a wrong answer stops the run and names the sampler and the method."""

import pytest

from fsm.errors import SamplerError
from fsm.events import FailureKind, GroupFinished, GroupRecord
from fsm.groups.invariants import check_deep
from specs.scenarios.world import World
from tests.fsm.helpers import go_on, refused, step_on, world_of

LOSSES = {
    "max_infra_attempts_per_prompt": 1,
    "max_consecutive_dropped_prompts": 9,
    "min_step_batch_fraction": 0.01,
}


def begun(name: str) -> World:
    return world_of(f"custom_samplers:{name}", failure=LOSSES, min_groups_for_streaming_train=2)


def all_well(world: World) -> None:
    for _ in range(40):
        if not world.over:
            go_on(world)


def a_step_closes(world: World) -> None:
    """With rollouts still running, of which the sampler is asked."""
    world.commit(0)
    world.commit(1)
    step_on(world)
    step_on(world)


def one_is_lost(world: World) -> None:
    world.drop(3, FailureKind.INFRA)


def one_is_lost_in_training(world: World) -> None:
    world.commit(0)
    world.commit(1)
    world.drop(3, FailureKind.INFRA)


WRONG = {
    "AdmitsAWord": (all_well, "admit returned 'go'"),
    "AdmitRaises": (all_well, "admit raised ZeroDivisionError: admit it"),
    "StampsAClosedStep": (all_well, "admit stamped a batch for step 0, which is closed"),
    "Fickle": (all_well, "admit returned different values for the same view"),
    "SelectRaises": (all_well, "select raised IndexError: select it"),
    "SelectsTooMany": (all_well, "select took 2 groups of GroupClass"),
    "SelectsTooFew": (all_well, "select took 1 groups; allowed: 2 to 2"),
    "SelectsTwice": (all_well, "named twice"),
    "SelectsWhatIsNotReady": (all_well, "select took 2 groups of GroupClass(target_step=7"),
    "SelectsNumbers": (all_well, "select took 0"),
    "SelectsForAnotherStep": (lambda world: world.commit(2), "select took groups stamped for step 1"),
    "EvictRaises": (all_well, "evict raised LookupError: evict it"),
    "EvictsWhatIsNotReady": (all_well, "evict named GroupClass(target_step=-1, bucket=-1, start_weight=99"),
    "EvictsTwice": (all_well, "evict named GroupClass"),
    "AbortRaises": (a_step_closes, "should_abort_inflight raised OverflowError: abort it"),
    "AbortsByAWord": (a_step_closes, "should_abort_inflight returned 'no'"),
    "ChargesAClosedStep": (one_is_lost, "to step -1, which is closed"),
    "ChargesAFarStep": (one_is_lost, "to step 1000000"),
    "ChargesHalfAStep": (one_is_lost, "charge_step_for_lost_group returned 0.5"),
    "ChargeRaises": (one_is_lost, "charge_step_for_lost_group raised ArithmeticError: charge it"),
    "ChargesTheFullStep": (one_is_lost_in_training, "to step 0, which is full: selected 2 + charged 0 of 2"),
    "LabelIsOutOfRange": (all_well, "label gave 2"),
    "LabelIsTrue": (all_well, "label gave True"),
    "LabelRaises": (all_well, "label raised UnicodeError: label it"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_stops_the_run_with_the_sampler_the_method_and_what_is_allowed(name: str) -> None:
    """L4 among them: a charge to a step that is full or closed."""
    happens, says = WRONG[name]
    world = begun(name)
    if not world.over:
        happens(world)
    assert world.status == "stopped"
    error = world.core.error
    assert isinstance(error, SamplerError)
    assert says in str(error)
    assert f"custom_samplers:{name}" in str(error)
    check_deep(world.core.state, world.core.limits, world.core.book.roster)


def test_a_sampler_that_labels_asks_the_caller_for_a_record() -> None:
    world = begun("LabelIsOutOfRange")
    assert "must carry a record" in refused(world.core, GroupFinished(world.running(0), zero_variance=False))


def test_a_label_becomes_part_of_the_class_of_a_ready_group() -> None:
    options = {"short_tokens": 10}
    world = world_of("examples.short_first:ShortFirst", options=options, size=3)
    for prompt, tokens in ((0, 11), (1, 10)):
        world.commit(prompt, GroupRecord(prompt, tokens, 0.5, 0.5))
    labels = {group.prompt: group.group_class.label for group in world.core.book.roster.ready_groups()}
    assert labels == {0: 1, 1: 0}
