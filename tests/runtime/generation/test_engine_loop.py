"""The engine inside an event loop: aborts, failures, and weights that load while it works."""

import asyncio

import numpy as np
import pytest
from transformers import GPT2LMHeadModel

from runtime.generation.engine import GenerationAborted, PolicyNotFinite, PromptTooLong
from runtime.generation.on_torch.loop import EngineLoop
from runtime.models.weights import export_weights
from tests.runtime.generation.helpers import make_engine, make_request


def test_whoever_awaits_an_aborted_or_failed_request_is_told(model: GPT2LMHeadModel) -> None:
    async def scenario() -> None:
        async with EngineLoop(make_engine(model)) as engine:
            (aborted,) = engine.submit([make_request("a")])
            await asyncio.sleep(0)
            assert engine.abort("a")
            assert not engine.abort("a")
            with pytest.raises(GenerationAborted, match="'a' was aborted"):
                await aborted
            with pytest.raises(PromptTooLong):
                engine.submit([make_request("b", [5] * 17)])
            good = export_weights(model)
            await engine.load_weights({name: np.full_like(array, np.nan) for name, array in good.items()}, 1)
            (failed,) = engine.submit([make_request("c")])
            with pytest.raises(PolicyNotFinite, match="weight version 1"):
                await failed
            assert await engine.load_weights(good, 2) == 2
            (fine,) = engine.submit([make_request("d")])
            assert (await fine).end_weight == 2
            (cut,) = engine.submit([make_request("e")])
        with pytest.raises(GenerationAborted, match="'e'"):
            await cut

    asyncio.run(scenario())


def test_weights_load_between_two_steps_of_a_group_in_flight(model: GPT2LMHeadModel) -> None:
    async def scenario() -> tuple[int, int]:
        async with EngineLoop(make_engine(model)) as engine:
            (future,) = engine.submit([make_request("g")])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not future.done()
            await engine.load_weights(export_weights(model), 1)
            group = await future
            return group.start_weight, group.end_weight

    assert asyncio.run(scenario()) == (0, 1)
