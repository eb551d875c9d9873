"""A custom sampler that breaks a promise about slots runs on; its checkpoints can be resumed all the same."""

import json

from fsm.config.parse import parse_config
from fsm.config.setup import set_up
from fsm.core import Core
from fsm.effects import Effect, FinishStep, StartRollout, SyncWeights, TrainChunk
from fsm.events import Begin, ChunkTrained, Event, GroupFinished, StepFinished, SyncFinished
from fsm.snapshot import restore, snapshot


def answer(effect: Effect) -> Event | None:
    match effect:
        case StartRollout(attempt):
            return GroupFinished(attempt, zero_variance=False)
        case TrainChunk(_, chunk, _):
            return ChunkTrained(chunk)
        case FinishStep(step):
            return StepFinished(step)
        case SyncWeights(version):
            return SyncFinished(version)
    return None


def test_a_checkpoint_of_a_sampler_that_evicts_against_its_promise_is_taken_up() -> None:
    target = "custom_samplers:EvictsAgainstItsPromise"
    document = {"grpo": {"num_prompts_per_step": 2}, "async_rl": {"sampler": {"name": "custom", "target": target}}}
    setup = set_up(parse_config(document), 40)
    core = Core(setup)
    pending = list(core.apply(Begin()))
    for turn in range(1, 60):  # every third time the last is answered first, so that some groups grow stale
        event = answer(pending.pop(0) if turn % 3 else pending.pop())
        pending += core.apply(event) if event is not None else ()
    assert core.state.sheet.evicted

    saved = json.loads(json.dumps(snapshot(core)))
    resumed = restore(setup, saved)
    resumed.apply(Begin())

    assert saved["sampler_keeps_every_slot"] is False
    assert resumed.state.trainer.version == core.state.trainer.version
