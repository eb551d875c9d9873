"""A world whose steps are metered, under a clock that the test sets."""

from typing import Any

from fsm.core import AppliedEvent
from fsm.events import GroupFinished
from fsm.state import State
from runtime.metrics.accumulator import StepMeter
from runtime.metrics.step_record import StepRecord
from runtime.training.step_metrics import StepMetrics
from specs.scenarios.world import World
from tests.runtime.bookkeeping import config_of, receipt_of, running_prompts, world_of


class Metered:
    """A world, its meter, and a clock that the test sets."""

    def __init__(self, sampler: str, window: int = 1, num_prompts: int = 24, **changes: Any) -> None:
        self.now_s = 100.0
        self.meter: StepMeter | None = None
        config = config_of(sampler, window, **changes)
        self.early: list[tuple[AppliedEvent, State]] = []
        self.world: World = world_of(config, num_prompts, lambda event, core: self.observe(event, core.state))
        self.meter = StepMeter(self.world.core.limits, now_s=100.0)
        for transition, state in self.early:
            self.meter.observe(transition, state, 100.0)

    def observe(self, transition: AppliedEvent, state: State) -> None:
        if self.meter is None:
            self.early.append((transition, state))
        else:
            self.meter.observe(transition, state, self.now_s)

    @property
    def it(self) -> StepMeter:
        assert self.meter is not None
        return self.meter

    def finish_next(self, *rewards: float, **changes: Any) -> None:
        """The group that runs longest finishes."""
        self.finish(running_prompts(self.world)[0], *rewards, **changes)

    def finish(self, prompt: int, *rewards: float, tokens: tuple[int, ...] = (4, 6), **changes: Any) -> None:
        """A group finishes with these rewards, as a runtime would tell it."""
        zero_variance = len(set(rewards)) == 1
        self.world.apply(GroupFinished(self.world.running(prompt), zero_variance))
        self.it.receive(receipt_of(prompt, rewards, tokens, **changes))

    def close(self, train_s: float = 0.0, finish_s: float = 0.0, sync_s: float = 0.0) -> None:
        """The step closes, taking these times."""
        self.now_s += train_s
        self.world.chunk_trained()
        self.now_s += finish_s
        self.it.trained(trainer_metrics(self.world.core.state.trainer.version + 1))
        self.world.step_finished()
        self.sheet_at_close = self.world.core.state.sheet
        self.now_s += sync_s
        self.world.weights_synced()


def trainer_metrics(version: int, **changes: Any) -> StepMetrics:
    given: dict[str, Any] = {
        "version": version,
        "loss": -0.1,
        "grad_norm": 0.7,
        "lr": 3e-4,
        "kl": 0.01,
        "reference_kl": None,
        "entropy": 1.2,
        "clip_fraction": 0.05,
        "clip_fraction_low": 0.02,
        "clip_fraction_high": 0.03,
        "importance_weight_mean": 1.01,
        "importance_weight_max": 1.9,
        "logprob_mismatch_mean": 0.03,
        "logprob_mismatch_max": 0.9,
        "logprob_mismatch_share": 0.01,
        "tokens": 30,
        "sequences": 4,
        "masked_sequences": 0,
        "groups": 2,
        "reward": 0.5,
        "staleness_mean": 0.0,
        "staleness_max": 0,
        "seconds": 0.2,
    }
    return StepMetrics(**given | changes)


def whole_chunks() -> dict[str, Any]:
    return {"async_rl": {"min_groups_for_streaming_train": 2}}


def only(records: list[StepRecord]) -> StepRecord:
    [record] = records
    return record
