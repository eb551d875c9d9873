"""Held-out prompts measured while other groups are generated."""

import asyncio
from collections.abc import Sequence

import pytest
from transformers import GPT2LMHeadModel

from runtime.generation.config import Sampling
from runtime.generation.evaluate import evaluate
from runtime.generation.on_torch.loop import EngineLoop
from runtime.generation.rollouts import SampledGroup
from runtime.models.text import TextCodec
from runtime.tasks.base import DataFailure, Scored, Verdict
from tests.runtime.generation.episodes import Guessing, encoded, rate
from tests.runtime.generation.helpers import make_config, make_engine, make_request


def test_evaluation_counts_correct_rollouts_beside_other_work(model: GPT2LMHeadModel, codec: TextCodec) -> None:
    async def scenario() -> None:
        config = make_config(stop_token_ids=tuple(range(3, 50)), max_prompt_tokens=40)
        async with EngineLoop(make_engine(model, config, version=6)) as engine:
            (training,) = engine.submit([make_request("g0")])
            results = [
                await evaluate(
                    engine,
                    Guessing(),
                    codec,
                    rate,
                    prompts=await encoded(Guessing(), codec, range(5)),
                    sampling=Sampling(temperature=temperature, max_new_tokens=12),
                    seed=0,
                    label="validation",
                    max_prompt_tokens=40,
                    rollouts_per_prompt=2,
                    max_turns=3,
                )
                for temperature in (1.0, 1.0, 0.0)
            ]
            assert results[0] == results[1]
            assert (len(results[0].prompts), len(results[0].rollouts)) == (5, 10)
            assert (results[0].start_weight, results[0].end_weight) == (6, 6)
            assert 0 < results[0].mean_reward <= 1
            assert results[0].accuracy <= results[0].mean_reward
            await training
            with pytest.raises(ValueError, match="'empty' has no prompts"):
                await evaluate(
                    engine,
                    Guessing(),
                    codec,
                    rate,
                    prompts={},
                    sampling=Sampling(),
                    seed=0,
                    label="empty",
                    max_prompt_tokens=40,
                )

    asyncio.run(scenario())


def test_a_rollout_without_a_verdict_counts_as_wrong_and_slow_verdicts_hold_up_no_generation(
    model: GPT2LMHeadModel, codec: TextCodec
) -> None:
    rated: list[int] = []
    all_sampled = asyncio.Event()

    async def late(groups: Sequence[SampledGroup]) -> Scored:
        rated.extend(group.index for group in groups)
        if len(rated) == 5:
            all_sampled.set()
        await all_sampled.wait()
        return Scored(
            [
                ("line 3: it hangs",) if group.index == 3 else (Verdict(-2.0, True, {f"part {group.index % 2}": 1.0}),)
                for group in groups
            ],
            "it prints",
        )

    async def scenario() -> None:
        config = make_config(stop_token_ids=tuple(range(3, 50)), max_prompt_tokens=40, max_batch_sequences=2)
        async with EngineLoop(make_engine(model, config)) as engine:
            evaluation = await evaluate(
                engine,
                Guessing(),
                codec,
                late,
                prompts=await encoded(Guessing(), codec, range(5)),
                sampling=Sampling(max_new_tokens=12),
                seed=0,
                label="validation",
                max_prompt_tokens=40,
                max_turns=3,
            )
        assert (evaluation.accuracy, evaluation.mean_reward) == (0.8, -2.0)
        assert evaluation.failures == ("line 3: it hangs",)
        assert set(evaluation.notices) == {"it prints"}

    asyncio.run(asyncio.wait_for(scenario(), timeout=120))


class Gone(Guessing):
    def opening(self, index: int) -> str:
        if index in (1, 3):
            raise DataFailure(f"data.jsonl:{index + 1}: the file was changed while the run reads from it")
        return self.prompt(index)


@pytest.mark.parametrize("indices", [range(4), [1, 3]])
def test_a_held_out_prompt_that_cannot_be_read_is_rollouts_without_verdict(
    model: GPT2LMHeadModel, codec: TextCodec, indices: Sequence[int]
) -> None:
    async def right(groups: Sequence[SampledGroup]) -> Scored:
        return Scored([(Verdict(1.0, True),) * len(group.samples) for group in groups], None)

    async def scenario() -> None:
        ended: list[int] = []
        async with EngineLoop(make_engine(model, make_config(max_prompt_tokens=40), version=6)) as engine:
            evaluation = await evaluate(
                engine,
                Gone(),
                codec,
                right,
                prompts=await encoded(Gone(), codec, indices),
                sampling=Sampling(max_new_tokens=12),
                seed=0,
                label="validation",
                max_prompt_tokens=40,
                rollouts_per_prompt=2,
                ended=lambda prompt: ended.append(prompt.index),
            )
        assert [prompt.index for prompt in evaluation.prompts] == sorted(ended) == list(indices)
        assert len(evaluation.failures) == 4
        assert evaluation.failures[0].startswith("data.jsonl:2: the file was changed")
        assert evaluation.accuracy == (len(indices) - 2) / len(indices)
        assert evaluation.start_weight == evaluation.end_weight == 6

    asyncio.run(scenario())
