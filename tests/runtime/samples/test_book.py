"""What becomes of a group is what its samples say: beside a real core, whatever happens to its groups."""

from typing import Any, Literal

import pytest

from fsm.core import AppliedEvent, Core
from fsm.effects import ClearRows
from fsm.events import ClaimUnreadable, GroupFinished
from runtime.samples.book import SampleBook
from specs.scenarios.world import World
from tests.runtime.bookkeeping import config_of, random_moves, receipt_of, running_prompts, world_of


class Watched:
    """A world whose groups all bring samples, and the book of them."""

    def __init__(self, per_step: int | Literal["all"], sampler: str = "ready_first", **changes: Any) -> None:
        self.book = SampleBook(per_step)
        self.fates: dict[int, str] = {}
        """By prompt, why its data was last cleared."""
        self.trained: dict[int, int] = {}
        """By prompt, the step that it was trained in."""
        self.finished: set[int] = set()
        config = config_of(sampler, 2, **changes)
        self.world: World = world_of(config, 60, self.observe)

    def observe(self, transition: AppliedEvent, core: Core) -> None:
        self.book.observe(transition, core.state.trainer.version)
        event = transition.event
        for effect in transition.effects:
            if isinstance(effect, ClearRows):
                for prompt in effect.prompts:
                    self.fates[prompt] = effect.why
                    self.trained[prompt] = core.state.trainer.version - 1
        if isinstance(event, GroupFinished):
            prompt = event.attempt.prompt
            self.finished.add(prompt)
            self.book.receive(receipt_of(prompt, (1.0, 0.0), (3, 4), samples=({"prompt": prompt},)))


@pytest.mark.parametrize("sampler", ["in_order", "ready_first", "windowed", "weight_fifo"])
@pytest.mark.parametrize("seed", range(4))
def test_every_finished_group_has_its_fate_and_its_step(sampler: str, seed: int) -> None:
    run = Watched("all", sampler)
    random_moves(run.world, seed, 300)
    lines = run.book.take()
    by_prompt = {line["prompt"]: line for line in lines}
    assert len(by_prompt) == len(lines) > 10
    for prompt, line in by_prompt.items():
        assert line["fate"] == run.fates[prompt]
        if line["fate"] == "trained":
            assert line["step"] == run.trained[prompt]
    run.book.close()
    left = run.book.take()
    assert {line["fate"] for line in left} <= {"ready"}
    assert {line["prompt"] for line in [*lines, *left]} == run.finished


def test_filtered_groups_are_of_the_step_under_way() -> None:
    run = Watched("all", grpo={"use_dynamic_sampling": True})
    random_moves(run.world, 3, 200)
    filtered = [line for line in run.book.take() if line["fate"] == "filtered"]
    assert filtered
    assert [line["step"] for line in filtered] == sorted(line["step"] for line in filtered)


def test_a_step_has_at_most_so_many_trained_and_so_many_other_groups() -> None:
    run = Watched(1, grpo={"use_dynamic_sampling": True})
    random_moves(run.world, 3, 300)
    places = [(line["step"], line["fate"] == "trained") for line in run.book.take()]
    assert len(places) == len(set(places)) > 5


def test_a_resumed_run_says_so_first() -> None:
    book = SampleBook(2, incarnation=3, resumed_at=7)
    assert book.take() == [{"kind": "resumed", "step": 7, "incarnation": 3}]
    assert book.take() == []


def test_an_unreadable_group_was_dropped() -> None:
    run = Watched("all")
    world = run.world
    while not world.core.book.roster.chunk:
        world.commit(running_prompts(world)[0])
    prompt = next(iter(world.core.book.roster.chunk.values())).prompt
    world.core.apply(ClaimUnreadable(prompt, "gone"))
    assert [(line["prompt"], line["fate"]) for line in run.book.take()] == [(prompt, "dropped")]
