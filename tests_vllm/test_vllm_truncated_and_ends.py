"""An engine with top_k, diverged weights, and its end: no process is left, and callers learn of its death.

Each of these spoils the engine for what comes after, so they follow each other in one scenario.
"""

import asyncio
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from vllm_helpers import TOLERANCE, Running, make_policy, make_request, open_engine, outcome, plain_logprobs

from runtime.generation.engine import GeneratedGroup, GenerationAborted, PolicyNotFinite, RequestRefused
from runtime.models.weights import export_weights

TOP_K = 5


def test_an_engine_with_top_k_from_its_start_to_its_end(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        engine = open_engine(tmp_path, runner, top_k=TOP_K)
        running = Running(engine, runner)
        processes = [child for child in psutil.Process().children(recursive=True) if "VLLM" in _title(child)]
        assert processes
        try:
            _logprobs_are_those_before_the_cut(running)
            _another_temperature_is_refused(running)
            _diverged_weights_are_named(running)
            left = _left_in_flight(running)
        finally:
            runner.run(engine.__aexit__(None, None, None))
        assert isinstance(runner.run(outcome(left)), GenerationAborted)
        _, alive = psutil.wait_procs(processes, timeout=10)
        assert alive == []


@pytest.mark.parametrize("after_s", [0.0, 0.2], ids=["on its way in", "while it is generated"])
def test_when_vllm_dies_its_callers_are_told(tmp_path: Path, after_s: float) -> None:
    with asyncio.Runner() as runner:
        engine = open_engine(tmp_path, runner, max_new_tokens=200)
        try:
            runner.run(_death(Running(engine, runner), after_s))
        finally:
            runner.run(engine.__aexit__(None, None, None))


def _logprobs_are_those_before_the_cut(running: Running) -> None:
    policy = make_policy(0)
    request = make_request("g", num_generations=16, top_k=TOP_K)
    (group,) = running.generate(request)
    ids = torch.tensor(request.prompt_token_ids.tolist())
    for sequence in group.sequences:
        np.testing.assert_allclose(sequence.logprobs, plain_logprobs(policy, request, sequence), atol=TOLERANCE)
        whole = torch.cat([ids, torch.from_numpy(sequence.token_ids)])
        with torch.no_grad():
            likeliest = policy(input_ids=whole[None]).logits[0, len(ids) - 1 : -1].topk(TOP_K).indices
        assert (likeliest == whole[len(ids) :, None]).any(-1).all()


def _another_temperature_is_refused(running: Running) -> None:
    async def scenario() -> None:
        with pytest.raises(RequestRefused, match=r"temperature 0.5 with generation.top_k"):
            running.engine.submit([make_request("g", top_k=TOP_K, temperature=0.5)])

    running.run(scenario())


def _diverged_weights_are_named(running: Running) -> None:
    diverged = {name: np.full_like(array, np.nan) for name, array in export_weights(make_policy(0)).items()}

    async def scenario() -> None:
        await running.engine.load_weights(diverged, 7)
        (future,) = running.engine.submit([make_request("g", top_k=TOP_K)])
        error = await outcome(future)
        assert isinstance(error, PolicyNotFinite)
        assert (error.version, error.request_ids) == (7, ("g",))

    running.run(scenario())


def _left_in_flight(running: Running) -> asyncio.Future[GeneratedGroup]:
    async def scenario() -> asyncio.Future[GeneratedGroup]:
        (future,) = running.engine.submit([make_request("cut", max_new_tokens=100)])
        return future

    return running.run(scenario())


async def _death(running: Running, after_s: float) -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    (future,) = running.engine.submit([make_request("g", num_generations=32, max_new_tokens=200)])
    await asyncio.sleep(after_s)
    (core,) = [child for child in psutil.Process().children() if "EngineCore" in _title(child)]
    core.suspend()
    load = asyncio.create_task(running.engine.load_weights(export_weights(make_policy(9)), 1))
    await asyncio.sleep(after_s)
    core.kill()
    async with asyncio.timeout(60):
        assert isinstance(await outcome(future), EngineDeadError)
        assert isinstance(await outcome(load), EngineDeadError)
    with pytest.raises(EngineDeadError):
        running.engine.health()
    async with asyncio.timeout(60):
        (late,) = running.engine.submit([make_request("late")])
        assert isinstance(await outcome(late), EngineDeadError)


def _title(process: psutil.Process) -> str:
    return " ".join(process.cmdline())
