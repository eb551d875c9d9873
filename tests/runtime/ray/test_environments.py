"""Runs in environments of users: what they learn from, and what a fault costs."""

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from fsm.events import Attempt, FailureKind, GroupFailed, GroupFinished
from runtime.actors.policy_host import PolicyHost
from runtime.control.messages import Message, Notice
from runtime.generation.rollouts import SampledGroup
from runtime.launch.ray_session import ray_session
from runtime.models.weights import export_weights
from runtime.settings import Settings
from runtime.tasks.base import Verdict
from runtime.trace.reader import open_trace
from runtime.trace.records import TransitionRecord
from runtime.transport.answers import Order
from tests.runtime.ray.helpers import ON_POLICY, adds_up, metrics_of, run, settings_of
from tests.started import started

USERS = Path(__file__).parents[2] / "users"


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    """As for other files, where Ray's processes find the environments of this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(USERS), *sys.path]))
        with ray_session(settings_of({}, steps=1)):
            yield


def environment(target: str, **options: object) -> dict[str, str]:
    return {
        "data.task": f"{{name: custom, target: 'wild_environments:{target}', timeout_s: 6, options: {options}}}",
        "data.max_turns": "3",
        "generation.max_prompt_tokens": "48",
    }


def events_of(trace: Path | None) -> list[Any]:
    assert trace is not None
    records = open_trace(trace).records()
    return [record.transition[0] for record in records if isinstance(record, TransitionRecord)]


async def sampled(settings: Settings, model: Path, attempts: Sequence[Attempt]) -> list[SampledGroup]:
    """The groups of the first step, as the run samples them."""
    weights = export_weights(AutoModelForCausalLM.from_pretrained(model, local_files_only=True))
    async with AsyncExitStack() as stack:
        host = await PolicyHost.open(settings, model, 0, stack)
        await host.load_weights(weights, 0)
        orders = [Order(attempt, 0) for attempt in attempts]
        samples, failed = host.start(orders, await host.encode(orders))
        assert failed == []
        return [await sample for _, sample in samples]


def left() -> list[str]:
    """Environment processes of these tests."""
    return started("runtime.tasks.environments.program", str(USERS))


def plain_gradient(model: Path, groups: list[SampledGroup], *, everything: bool) -> float:
    """The norm of the gradient of advantage × log-probability, over the policy's tokens or also the environment's."""
    policy = AutoModelForCausalLM.from_pretrained(model, local_files_only=True)
    loss, tokens = torch.zeros(()), 0
    for group in groups:
        rewards = np.array([rated.reward for rated in (s.rated for s in group.samples) if isinstance(rated, Verdict)])
        deviation = rewards.std(ddof=1)
        for sample, reward in zip(group.samples, rewards, strict=True):
            ids = torch.tensor(sample.token_ids, dtype=torch.long)
            logprobs = policy(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
            mask = torch.tensor(sample.loss_mask)
            if everything:
                mask = torch.arange(len(ids)) >= int(mask.nonzero()[0])
            chosen = logprobs.gather(-1, ids[1:, None])[:, 0] * mask[1:]
            loss = loss - chosen.sum() * float((reward - rewards.mean()) / (deviation + 1e-6))
            tokens += int(mask.sum())
    (loss / tokens).backward()
    return float(torch.stack([p.grad.square().sum() for p in policy.parameters() if p.grad is not None]).sum().sqrt())


def test_a_step_learns_from_the_policys_tokens_and_not_from_the_environments(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(USERS)
    settings = settings_of({**environment("Asking"), **ON_POLICY}, steps=1)
    outcome = run(settings, model, tmp_path / "run")
    assert outcome.status == "completed", outcome.error
    (step,) = metrics_of(tmp_path / "run")
    attempts = [event.attempt for event in events_of(outcome.trace) if isinstance(event, GroupFinished)]
    groups = asyncio.run(sampled(settings, model, attempts))
    turns = {len(sample.turns) for group in groups for sample in group.samples}
    assert 3 in turns, "the environment has spoken"
    own = sum(int(sample.loss_mask.sum()) for group in groups for sample in group.samples)
    assert step["trained_tokens"] == own
    assert step["grad_norm"] == pytest.approx(plain_gradient(model, groups, everything=False), rel=1e-3)
    assert step["grad_norm"] != pytest.approx(plain_gradient(model, groups, everything=True), rel=0.02)


def test_an_environment_that_misbehaves_costs_the_groups_that_it_fails(model: Path, tmp_path: Path) -> None:
    """(L7)."""
    deeds = {
        "training 3": "raises",
        "training 5": "exits",
        "training 9": "blocks",
        "training 14": "segfaults",
        "validation 2": "raises",
        "validation 4": "exits",
    }
    settings = settings_of(
        {
            **environment("Sometimes", deeds=deeds),
            "data.validation_size": "8",
            "grpo.use_dynamic_sampling": "false",
            "async_rl.rollout_failure.on_dropped_prompt": "shrink",
            "async_rl.rollout_failure.max_data_attempts_per_prompt": "1",
            "async_rl.rollout_failure.max_skipped_prompts": "100",
            "async_rl.rollout_failure.max_infra_attempts_per_prompt": "10",
        },
        steps=8,
    )
    told: list[Message] = []
    outcome = run(settings, model, tmp_path / "run", told.append)
    assert outcome.status == "completed", outcome.error
    assert len(outcome.closed) == 8
    assert adds_up(outcome.balance)
    assert outcome.worker_restarts == 0
    failures = [event for event in events_of(outcome.trace) if isinstance(event, GroupFailed)]
    of_data = {event.attempt.prompt: event.error for event in failures if event.kind is FailureKind.DATA}
    assert set(of_data) == {3, 5, 9, 14}, failures
    assert "item 3 of training ('003>'): verdict of the completion" in of_data[3]
    assert "raised ValueError: no such tool (" in of_data[3]
    assert "called os._exit (" in of_data[5]
    assert "did not return within data.task.timeout_s = 6 s (" in of_data[9]
    assert "crashed: Segmentation fault (" in of_data[14]
    for event in failures:
        if event.kind is FailureKind.INFRA:
            assert "another rollout" in event.error
    notices = [message.text for message in told if isinstance(message, Notice)]
    (missing,) = [text for text in notices if "held-out rollouts have no verdict after 0 steps" in text]
    assert "environment 'wild_environments:Sometimes', item" in missing
    until_s = time.monotonic() + 60
    while left() and time.monotonic() < until_s:
        time.sleep(0.1)
    assert left() == []
