"""The policy where it samples: engine, tokenizer and tasks of a generation worker.

It imports torch, and is a separate module because the controller imports the worker and must not.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np
import numpy.typing as npt

from fsm.errors import InvariantBroken
from fsm.events import FailureKind
from runtime.checkpoints.origin import refuse_changed_data, refuse_changed_set
from runtime.evaluation.config import TRAINING
from runtime.evaluation.examiner import Examiner
from runtime.evaluation.sets import engine_limits
from runtime.generation.config import GenerationConfig, TorchEngineConfig
from runtime.generation.engine import Engine, GroupRequest, PromptTooLong
from runtime.generation.evaluate import RateGroups
from runtime.generation.rollouts import Encoded, GroupJob, SampledGroup, encode_item, make_job, sample_groups
from runtime.groups import Evaluation
from runtime.models.loading import load_tokenizer
from runtime.models.renderer import SHARED, RenderingLost
from runtime.models.text import NotRendered, TextCodec, make_codec, model_stop_tokens
from runtime.samples.taking import SampleTaker
from runtime.settings import Settings
from runtime.tasks.base import DataFailure
from runtime.tasks.data import Stream, item_at, load_task
from runtime.tasks.environments.pool import EnvironmentPool
from runtime.tasks.environments.task import open_environments, open_of
from runtime.transport.answers import AttemptFailed, Order

PROOF_TOKENS = 4
"""Tokens that a restarted worker generates before it gets attempts."""


def open_engine(
    model_directory: Path, config: GenerationConfig, stop_token_ids: Sequence[int]
) -> AbstractAsyncContextManager[Engine]:
    """The engine that `generation.engine` names, running inside the context. Only its own packages are imported."""
    if isinstance(config.engine, TorchEngineConfig):
        from runtime.generation.on_torch.engine import load_torch_engine
        from runtime.generation.on_torch.loop import EngineLoop

        return EngineLoop(load_torch_engine(model_directory, config, stop_token_ids=stop_token_ids))
    from runtime.generation.on_vllm.engine import VllmEngine

    return VllmEngine(model_directory, config, stop_token_ids=stop_token_ids)


class PolicyHost:
    """Made by `open`."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        codec: TextCodec,
        first_prompt: int,
        began_with: Mapping[str, str] = MappingProxyType({}),
        environments: Mapping[str, EnvironmentPool] = MappingProxyType({}),
    ) -> None:
        """environments: those of `data` (TRAINING) and of evaluation sets, by name."""
        self._settings = settings
        self._environments = environments
        self._engine = engine
        self._codec = codec
        self._task = load_task(settings.data, "training")
        refuse_changed_data(self._task, began_with.get(TRAINING))
        self._examiner = Examiner(engine, codec.tokenizer, settings.sets, environments)
        for name, task in self._examiner.tasks.items():
            refuse_changed_set(name, task, began_with.get(name))
        self._stream = Stream(
            num_prompts=self._task.num_prompts,
            seed=settings.data.seed,
            shuffle=settings.data.shuffle,
            max_epochs=settings.grpo.max_num_epochs,
            first_prompt=first_prompt,
        )
        self.version = -1
        """The loaded version; -1 before the first."""
        self.samples = SampleTaker(
            settings.samples, settings.loss_fn, settings.grpo.num_prompts_per_step, self._task, codec
        )

    @classmethod
    async def open(
        cls,
        settings: Settings,
        model_directory: Path,
        first_prompt: int,
        stack: AsyncExitStack,
        began_with: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """Load tokenizer and model, and start the engine, which runs until `stack` is closed.

        `first_prompt` is the run's number of the data's first prompt, `began_with` the hashes of its prompts
        and those of sets (`Start.began_with`). Raises TaskError if the data has changed.
        """
        stack.callback(SHARED.close)
        tokenizer = load_tokenizer(model_directory)
        codec = make_codec(tokenizer, settings.data)
        engine = await stack.enter_async_context(
            open_engine(
                model_directory,
                engine_limits(settings.generation, settings.sets),
                model_stop_tokens(tokenizer, model_directory),
            )
        )
        own = {TRAINING: (settings.data, settings.generation.max_prompt_tokens)}
        datas = own | {each.name: (each.data, each.max_prompt_tokens) for each in settings.sets}
        environments = await open_environments(datas, stack)
        return cls(settings, engine, codec, first_prompt, began_with, environments)

    @property
    def busy_s(self) -> float:
        return self._engine.health().busy_s

    async def load_weights(self, weights: Mapping[str, npt.NDArray[np.generic]], version: int) -> None:
        self.version = await self._engine.load_weights(weights, version)

    async def encode(self, orders: Sequence[Order]) -> list[Encoded]:
        """The prompts of orders.

        After one whose chat template had to be stopped, the others are left to a retry: each might take its deadline.
        """
        encoded: list[Encoded] = []
        for order in orders:
            last = encoded[-1] if encoded else None
            if isinstance(last, RenderingLost) or (isinstance(last, NotRendered) and not last.refused):
                encoded.append(RenderingLost("the chat template had to be stopped at another prompt of the same order"))
            else:
                encoded.append(await encode_item(self._task, self._codec, self._index(order)))
        return encoded

    def start(
        self, orders: Sequence[Order], encoded: Sequence[Encoded]
    ) -> tuple[list[tuple[Order, asyncio.Task[SampledGroup]]], list[AttemptFailed]]:
        """Start orders as one submission to the engine. Also returns failures: orders that the data does not allow."""
        jobs: list[tuple[Order, GroupJob]] = []
        failed: list[AttemptFailed] = []
        for order, prompt in zip(orders, encoded, strict=True):
            try:
                jobs.append((order, self._job(order, prompt)))
            except (DataFailure, RenderingLost) as error:
                kind = FailureKind.DATA if isinstance(error, DataFailure) else FailureKind.INFRA
                where = self._task.where(self._index(order))
                failed.append(AttemptFailed(order.attempt, kind, f"prompt {order.attempt.prompt}, {where}: {error}"))
        if not jobs:
            return [], failed
        samples = sample_groups(
            self._engine,
            self._codec,
            [job for _, job in jobs],
            max_prompt_tokens=self._settings.generation.max_prompt_tokens,
            max_turns=self._settings.data.max_turns,
            open_episode=open_of(self._environments, TRAINING, "training"),
            where=self._task.where,
        )
        return [(order, sample) for (order, _), sample in zip(jobs, samples, strict=True)], failed

    async def prove(self) -> None:
        """Generate a few tokens with the loaded weights. Raises the engine's error."""
        sampling = self._settings.generation.sampling()
        few = replace(sampling, max_new_tokens=min(PROOF_TOKENS, sampling.max_new_tokens))
        request = GroupRequest(f"proof-{self.version}", np.zeros(1, dtype=np.int32), 1, self._settings.seed, few)
        await self._engine.submit([request])[0]

    async def encode_held_out(self, name: str, indices: Sequence[int]) -> dict[int, Encoded]:
        """Prompts of a set, by index."""
        return await self._examiner.encode(name, indices)

    async def evaluate(self, name: str, label: str, prompts: Mapping[int, Encoded], rate: RateGroups) -> Evaluation:
        """Measure these prompts of a set, while training groups are generated too."""
        return await self._examiner.measure(name, label, prompts, rate)

    def take_printed(self) -> str | None:
        """What the environment printed, once; None if nothing."""
        environment = self._environments.get(TRAINING)
        return None if environment is None else environment.take_printed()

    def _index(self, order: Order) -> int:
        return item_at(self._stream, order.attempt.prompt).index

    def _job(self, order: Order, prompt: Encoded) -> GroupJob:
        """Raises DataFailure if the data does not allow the order, and RenderingLost."""
        if order.start_weight > self.version:
            raise InvariantBroken(
                f"{order.attempt} starts under version {order.start_weight}, but the worker runs {self.version}: "
                "it has confirmed a version that it does not run"
            )
        if isinstance(prompt, Exception):
            raise prompt
        request_id = f"{order.attempt.incarnation}-{order.attempt.dispatch}"
        job = make_job(
            prompt=order.attempt.prompt,
            index=self._index(order),
            prompt_token_ids=prompt,
            num_generations=self._settings.grpo.num_generations_per_prompt,
            sampling=self._settings.generation.sampling(),
            seed=self._settings.seed,
            request_id=request_id,
        )
        tokens, limit = len(job.request.prompt_token_ids), self._settings.generation.max_prompt_tokens
        if tokens > limit:
            raise PromptTooLong(request_id, tokens, limit)
        return job
