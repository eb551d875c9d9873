"""The driver of docs/embedding_the_core.md, as printed, around the real core."""

import copy
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fsm
from fsm import effects, errors, events
from fsm.config.setup import Setup

TEXT = (Path(__file__).parents[2] / "docs/embedding_the_core.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
PROMPTS, SIZE = 18, 3


def driver_class() -> Any:
    names: dict[str, Any] = {}
    exec(compile(EXAMPLES[0], "embedding_the_core.md", "exec"), names)
    return names["Driver"]


Driver = driver_class()


class Crash(Exception):
    """The process dies here."""


class Dying:
    """Counts the calls of the world, and dies at one of them."""

    def __init__(self, at: int | None) -> None:
        self.left = at

    def live(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Crash


class Generation:
    """Answers in a random order; some attempts fail, some groups have no variance, some answers come twice."""

    def __init__(self, dying: Dying, chance: random.Random) -> None:
        self.dying, self.chance = dying, chance
        self.running: list[events.Attempt] = []
        self.over: list[events.Attempt] = []
        self.backing_off: list[events.Attempt] = []
        self.failed: set[int] = set()
        self.stopped = False

    def load(self, weights: list[list[int]]) -> None:
        self.version = len(weights)

    def start(self, attempt: events.Attempt) -> None:
        assert attempt not in self.running
        self.running.append(attempt)

    def abort(self, attempt: events.Attempt) -> None:
        self.running.remove(attempt)
        self.over.append(attempt)

    def wait(self, attempt: events.Attempt, delay_s: float) -> None:
        assert delay_s > 0
        self.backing_off.append(attempt)

    def stop(self) -> None:
        self.stopped = True

    def next_answer(self) -> tuple[events.Event, str | None]:
        self.dying.live()
        if self.over and self.chance.random() < 0.1:
            return events.GroupFinished(self.over[-1], zero_variance=False), "late"
        if self.backing_off and (not self.running or self.chance.random() < 0.5):
            return events.BackoffOver(self.backing_off.pop()), None
        attempt = self.running.pop(self.chance.randrange(len(self.running)))
        self.over.append(attempt)
        if attempt.prompt % 5 == 1 and attempt.prompt not in self.failed:
            self.failed.add(attempt.prompt)
            return events.GroupFailed(attempt, events.FailureKind.INFRA, "the worker died"), None
        return events.GroupFinished(attempt, zero_variance=attempt.prompt % 7 == 3), f"row {attempt.prompt}"


class Trainer:
    """Its weights are the prompts of every step so far."""

    def __init__(self, dying: Dying) -> None:
        self.dying = dying
        self.steps: list[list[int]] = []
        self.accumulated: list[int] = []

    def accumulate(self, row: str, start_weight: int) -> None:
        self.dying.live()
        assert 0 <= start_weight <= len(self.steps)
        word, prompt = row.split()
        assert word == "row", "a late row is never trained"
        if prompt == "8":
            raise OSError("the disk lost it")
        self.accumulated.append(int(prompt))

    def step(self, divide_by: int) -> None:
        self.dying.live()
        assert divide_by == len(self.accumulated)
        self.steps.append(self.accumulated)
        self.accumulated = []

    def weights(self) -> list[list[int]]:
        return copy.deepcopy(self.steps)

    def load(self, weights: list[list[int]]) -> None:
        self.steps = copy.deepcopy(weights)


def setup_of(sampler: str, dropped: int = PROMPTS) -> Setup:
    failure = {"max_consecutive_dropped_prompts": dropped, "min_step_batch_fraction": 0.3, "backoff_base_s": 1.0}
    chosen = {"name": sampler} | ({"max_staleness_versions": 1} if sampler == "windowed" else {})
    document: dict[str, Any] = {
        "grpo": {"num_prompts_per_step": SIZE, "use_dynamic_sampling": True},
        "async_rl": {
            "sampler": chosen,
            "min_groups_for_streaming_train": 1,
            "rollout_failure": {**failure, "on_dropped_prompt": "replace"},
        },
    }
    return fsm.set_up(fsm.parse_config(document), PROMPTS)


def drive(setup: Setup, crash_at: int | None, seed: int) -> tuple[Any, int]:
    """A run that dies once, and its resume, where it came to that; the last driver, and how often it died."""
    saved: list[dict[str, Any]] = []
    chance, dying = random.Random(seed), Dying(crash_at)
    driver = Driver(setup, Generation(dying, chance), Trainer(dying), saved.append)
    try:
        driver.run()
    except Crash:
        resumed = Driver(
            setup, Generation(Dying(None), chance), Trainer(Dying(None)), saved.append, saved[-1] if saved else None
        )
        resumed.run()
        return resumed, 1
    return driver, 0


def check(driver: Any) -> None:
    steps, closed = driver.trainer.steps, driver.core.book.closed
    trained = [prompt for step in steps for prompt in step]
    assert len(trained) == len(set(trained)), "nothing is trained twice"
    assert [len(step) for step in steps] == [step.selected for step in closed]
    assert all(step.selected + step.charged + step.short == SIZE for step in closed)
    assert driver.generation.version == len(steps)
    assert driver.generation.stopped
    assert not {3, 8} & set(trained), "filtered and unreadable groups are not trained"
    assert len(closed) > 1


@pytest.mark.parametrize("sampler", ["in_order", "ready_first", "windowed"])
def test_the_driver_trains_every_step_evenly_and_nothing_twice_wherever_it_dies(sampler: str) -> None:
    setup = setup_of(sampler)
    died = 0
    for crash_at in range(60):
        driver, crashes = drive(setup, crash_at, seed=crash_at)
        check(driver)
        died += crashes
    assert 15 < died < 60, "most runs die early or late, and some come to their end"


def test_a_run_that_a_budget_stops_raises_its_error_and_resumes_from_before_it() -> None:
    saved: list[dict[str, Any]] = []
    stopped = Driver(
        setup_of("ready_first", 0), Generation(Dying(None), random.Random(1)), Trainer(Dying(None)), saved.append
    )
    with pytest.raises(fsm.BudgetExceeded):
        stopped.run()

    chance = random.Random(1)
    resumed = Driver(
        setup_of("ready_first"), Generation(Dying(None), chance), Trainer(Dying(None)), saved.append, saved[-1]
    )
    resumed.run()

    check(resumed)


def test_the_other_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    [other] = EXAMPLES[1:]
    exec(compile(other, "embedding_the_core.md", "exec"), {})
    assert "16 of 10000 prompts are never pulled" in capsys.readouterr().out


def rows_of(heading: str) -> list[str]:
    """First cells of the table under a heading of the document."""
    section = TEXT.partition(f"## {heading}")[2].partition("\n## ")[0]
    return [name for line in section.splitlines() for name in re.findall(r"^\| `(\w+)`", line)]


def members(union: Any) -> Iterator[str]:
    return (kind.__name__ for kind in union.__args__)


def test_every_effect_and_every_event_has_its_duties() -> None:
    assert sorted(rows_of("Effects")) == sorted(members(effects.Effect))
    assert sorted(rows_of("Events")) == sorted(members(events.Event))


def test_every_public_error_has_a_place_in_the_document() -> None:
    public = {name for name in fsm.__all__ if isinstance(getattr(errors, name, None), type)}
    kinds_of_limits = {name for name in public if issubclass(getattr(errors, name), errors.LimitReached)}
    assert all(name in TEXT for name in public - kinds_of_limits - {"EvenstepError"})
