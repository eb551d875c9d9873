"""StepTrainer: the update does not depend on how the step was cut, and equals a plain one."""

import math

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel

from runtime.groups import RolloutGroup
from runtime.training.config import (
    ConstantSchedule,
    LossConfig,
    OptimizerConfig,
    RewardShapingConfig,
)
from runtime.training.trainer import StepTrainer
from tests.runtime.training.helpers import (
    assert_same_weights,
    copied_weights,
    make_groups,
    make_trainer,
    train,
    two_steps,
)

LOSSES = [
    LossConfig(),
    LossConfig(aggregation="sequence", normalize_rewards=False, use_leave_one_out_baseline=True),
    LossConfig(aggregation="dr_grpo", old_policy="generation", ratio_clip_c=3.0),
    LossConfig(reference_policy_kl_penalty=0.1, entropy_coefficient=0.05, overlong_filtering=True),
    LossConfig(reward_shaping=RewardShapingConfig(max_response_length=10, overlong_buffer_length=5)),
]


def name_of(loss: LossConfig) -> str:
    return ",".join(loss.model_dump(exclude_defaults=True)) or "default"


@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
def test_the_update_does_not_depend_on_how_the_step_was_cut(tiny_gpt2: str, loss: LossConfig) -> None:
    whole = make_trainer(tiny_gpt2, loss=loss, train_microbatch_tokens=1000)
    expected = two_steps(whole, cut=6)
    for cut, budget in ((1, 24), (2, 64), (3, 1000)):
        trainer = make_trainer(tiny_gpt2, loss=loss, train_microbatch_tokens=budget)
        found = two_steps(trainer, cut)
        assert_same_weights(trainer.state_numpy(), whole.state_numpy(), tolerance=2e-5)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.tokens == theirs.tokens
            assert ours.loss == pytest.approx(theirs.loss, abs=1e-5)
            assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-4)
            assert ours.clip_fraction == theirs.clip_fraction


def test_the_order_of_the_chunks_does_not_matter(tiny_gpt2: str) -> None:
    groups = make_groups(4, seed=1)
    weights = []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        trainer = make_trainer(tiny_gpt2)
        train(trainer, [[groups[index]] for index in order])
        weights.append(copied_weights(trainer))
    assert_same_weights(*weights, tolerance=2e-5)


def test_the_accumulated_gradient_is_the_sum_of_those_of_the_chunks(tiny_gpt2: str) -> None:
    groups = make_groups(4, seed=1)
    together, total = make_trainer(tiny_gpt2), None
    together.accumulate(groups, 0)
    for group in groups:
        trainer = make_trainer(tiny_gpt2)
        trainer.accumulate([group], 0)
        gradient = torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])
        total = gradient if total is None else total + gradient
    found = torch.cat([p.grad.flatten() for p in together.model.parameters() if p.grad is not None])
    torch.testing.assert_close(found, total, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("overlong_filtering", [False, True])
@pytest.mark.parametrize("aggregation", ["token", "sequence", "dr_grpo"])
def test_a_step_equals_a_plain_one_rollout_at_a_time(
    tiny_gpt2: str, aggregation: str, overlong_filtering: bool
) -> None:
    """The whole step written out: policy gradient with truncated weights, divided, clipped, AdamW.

    What overlong filtering leaves out counts in the baseline and in nothing else, the divisors included.
    """
    loss = LossConfig.model_validate(
        {"aggregation": aggregation, "dr_grpo_length": 20, "overlong_filtering": overlong_filtering}
    )
    optimizer = OptimizerConfig(lr=1e-2, eps=1e-3, max_grad_norm=0.1)
    groups = make_groups(3, seed=5)
    trainer = make_trainer(tiny_gpt2, loss=loss, optimizer=optimizer)
    metrics = train(trainer, [groups])

    model = GPT2LMHeadModel.from_pretrained(tiny_gpt2).eval()
    total, tokens, sequences = torch.zeros(()), 0, 0
    for group in groups:
        rewards = np.array([rollout.reward for rollout in group.rollouts])
        advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        for rollout, advantage in zip(group.rollouts, advantages, strict=True):
            if overlong_filtering and not rollout.finished:
                continue
            sequences += 1
            ids = torch.tensor(rollout.token_ids.astype(np.int64))
            logprobs = torch.log_softmax(model(input_ids=ids[None]).logits[0], -1)
            values = []
            for t in np.flatnonzero(rollout.loss_mask):
                logprob = logprobs[t - 1, ids[t]]
                weight = min(math.exp(logprob.item() - float(rollout.logprobs[t])), 2.0)
                values.append(-weight * advantage * logprob)
            tokens += len(values)
            total = total + sum(values) / (len(values) if aggregation == "sequence" else 1)
    assert sequences == (9 if overlong_filtering else 12)
    divisor = {"token": tokens, "sequence": sequences, "dr_grpo": sequences * 20}[aggregation]
    (total / divisor).backward()
    plain = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3, weight_decay=0.0)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    plain.step()

    assert metrics.grad_norm == pytest.approx(norm.item(), rel=1e-4)
    assert metrics.tokens == tokens
    expected = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    assert_same_weights(trainer.state_numpy(), expected, tolerance=2e-5)


def test_metrics_say_what_the_step_was_made_of(tiny_gpt2: str) -> None:
    optimizer = OptimizerConfig(lr=0.01, schedule=ConstantSchedule(warmup_steps=4))
    trainer = make_trainer(tiny_gpt2, loss=LossConfig(overlong_filtering=True), optimizer=optimizer)
    for step in range(3):
        fresh, stale = make_groups(2, seed=step, start_weight=step), make_groups(1, seed=9)
        metrics = train(trainer, [fresh, [], stale])
    rollouts = [rollout for group in fresh + stale for rollout in group.rollouts]
    finished = [rollout for rollout in rollouts if rollout.finished]
    assert metrics.version == trainer.version == 3
    assert metrics.groups == 3
    assert metrics.sequences == len(finished) == 9
    assert metrics.masked_sequences == 3
    assert metrics.tokens == sum(rollout.completion_tokens for rollout in finished)
    assert metrics.reward == pytest.approx(np.mean([rollout.reward for rollout in rollouts]))
    assert metrics.staleness_mean == pytest.approx((0 + 0 + 2) / 3)
    assert metrics.staleness_max == 2
    assert metrics.lr == pytest.approx(0.01 * 3 / 4)
    assert metrics.clip_fraction == 0.0
    assert metrics.reference_kl is None
    assert 0 < metrics.entropy <= math.log(13)
    assert metrics.kl > 0
    assert metrics.importance_weight_max >= metrics.importance_weight_mean > 0
    assert metrics.grad_norm > 0
    assert metrics.seconds > 0


def test_on_policy_rollouts_have_weight_one_and_no_divergence(tiny_gpt2: str) -> None:
    trainer = make_trainer(tiny_gpt2, loss=LossConfig(old_policy="generation"))
    groups = [with_own_logprobs(trainer, group) for group in make_groups(3, seed=0)]
    metrics = train(trainer, [groups])
    assert metrics.kl == pytest.approx(0, abs=1e-6)
    assert metrics.importance_weight_mean == pytest.approx(1, abs=1e-5)
    assert metrics.clip_fraction == 0


def test_on_policy_both_old_policies_make_the_same_update(tiny_gpt2: str) -> None:
    weights = []
    for old_policy in ("generation", "recomputed"):
        trainer = make_trainer(tiny_gpt2, loss=LossConfig.model_validate({"old_policy": old_policy}))
        train(trainer, [[with_own_logprobs(trainer, group) for group in make_groups(3, seed=0)]])
        weights.append(copied_weights(trainer))
    assert_same_weights(*weights, tolerance=2e-5)


def with_own_logprobs(trainer: StepTrainer, group: RolloutGroup) -> RolloutGroup:
    """The group as the trainer's own policy would have sampled it."""
    rollouts = []
    for rollout in group.rollouts:
        ids = torch.tensor(rollout.token_ids.astype(np.int64))
        with torch.no_grad():
            logprobs = torch.log_softmax(trainer.model(input_ids=ids[None]).logits[0], -1)
        own = np.zeros(len(ids), np.float32)
        own[1:] = logprobs[:-1].gather(-1, ids[1:, None])[:, 0].numpy()
        rollouts.append(
            type(rollout)(
                rollout.token_ids, rollout.loss_mask, own * rollout.loss_mask, rollout.reward, rollout.finished
            )
        )
    return RolloutGroup(group.prompt, tuple(rollouts), group.start_weight, group.end_weight)


def test_training_raises_the_reward_that_it_is_given(tiny_gpt2: str) -> None:
    """A bandit: the first token after the prompt should be 3; eight siblings try tokens at random."""
    trainer = make_trainer(tiny_gpt2, optimizer=OptimizerConfig(lr=3e-3))
    prompt = torch.tensor([[1, 2]])
    rng = np.random.default_rng(0)

    def policy() -> np.ndarray:
        with torch.no_grad():
            return torch.softmax(trainer.model(input_ids=prompt).logits[0, -1].double(), -1).numpy()

    before = policy()[3]
    for _ in range(30):
        probabilities = policy()
        groups = []
        for number in range(4):
            tokens = rng.choice(13, size=8, p=probabilities / probabilities.sum())
            template = make_groups(1, seed=0, siblings=8)[0].rollouts[0]
            groups.append(
                RolloutGroup(
                    number,
                    tuple(
                        type(template)(
                            np.array([1, 2, token], np.int32),
                            np.array([False, False, True]),
                            np.array([0, 0, np.log(probabilities[token])], np.float32),
                            float(token == 3),
                            True,
                        )
                        for token in tokens
                    ),
                    trainer.version,
                    trainer.version,
                )
            )
        train(trainer, [groups])
    assert before < 0.3
    assert policy()[3] > 0.9


def test_gradient_checkpointing_and_the_choice_of_layers_change_memory_not_the_update(
    tiny_gpt2: str,
) -> None:
    plain = make_trainer(tiny_gpt2, train_last_layers=1)
    initial = copied_weights(plain)
    two_steps(plain, cut=6)
    checkpointed = make_trainer(tiny_gpt2, train_last_layers=1, gradient_checkpointing=True)
    two_steps(checkpointed, cut=6)
    assert_same_weights(checkpointed.state_numpy(), plain.state_numpy(), tolerance=1e-6)
    for name, array in plain.state_numpy().items():
        assert np.array_equal(array, initial[name]) != name.startswith("transformer.h.1."), name


def test_bfloat16_computes_about_the_same_and_keeps_float32_weights(tiny_gpt2: str) -> None:
    exact, rounded = make_trainer(tiny_gpt2), make_trainer(tiny_gpt2, precision="bfloat16")
    expected, found = two_steps(exact, cut=6), two_steps(rounded, cut=3)
    assert all(parameter.dtype == torch.float32 for parameter in rounded.model.parameters())
    assert found[0].loss != expected[0].loss
    assert found[0].grad_norm == pytest.approx(expected[0].grad_norm, rel=0.05)


def test_the_reference_stays_the_initial_model_and_is_measured(tiny_gpt2: str) -> None:
    trainer = make_trainer(tiny_gpt2, loss=LossConfig(reference_policy_kl_penalty=0.1))
    first, second = two_steps(trainer, cut=6)
    assert first.reference_kl == pytest.approx(0, abs=1e-9)
    assert second.reference_kl is not None
    assert second.reference_kl > 1e-4


def test_a_discarded_step_leaves_no_trace(tiny_gpt2: str) -> None:
    clean, disturbed = make_trainer(tiny_gpt2), make_trainer(tiny_gpt2)
    disturbed.accumulate(make_groups(2, seed=77), 0)
    disturbed.discard()
    for trainer in (clean, disturbed):
        two_steps(trainer, cut=6)
    assert_same_weights(clean.state_numpy(), disturbed.state_numpy())


def test_a_step_whose_rollouts_are_all_masked_moves_the_version_only(tiny_gpt2: str) -> None:
    trainer = make_trainer(tiny_gpt2, loss=LossConfig(overlong_filtering=True))
    two_steps(trainer, cut=6)
    before = copied_weights(trainer)
    (group,) = make_groups(1, seed=0)
    masked = RolloutGroup(0, (group.rollouts[3], group.rollouts[3]), 0, 0)
    metrics = train(trainer, [[masked]])
    assert (metrics.version, metrics.tokens, metrics.loss, metrics.grad_norm) == (3, 0, 0.0, 0.0)
    assert metrics.masked_sequences == 2
    assert_same_weights(trainer.state_numpy(), before)


def test_a_finish_without_a_group_is_refused(tiny_gpt2: str) -> None:
    trainer = make_trainer(tiny_gpt2)
    trainer.accumulate([], 0)
    with pytest.raises(RuntimeError, match="finish_step at version 0 without a group"):
        trainer.finish_step()


def test_a_chunk_for_another_version_or_from_the_future_is_refused(tiny_gpt2: str) -> None:
    trainer = make_trainer(tiny_gpt2)
    with pytest.raises(ValueError, match="a chunk for version 1, but the trainer is at version 0"):
        trainer.accumulate(make_groups(1, seed=0), 1)
    with pytest.raises(ValueError, match="prompt 0 started under version 2, later than the version 0"):
        trainer.accumulate(make_groups(1, seed=0, start_weight=2), 0)


def test_a_refused_chunk_leaves_the_step_as_it_was(tiny_gpt2: str) -> None:
    clean, disturbed = make_trainer(tiny_gpt2), make_trainer(tiny_gpt2)
    bad = make_groups(1, seed=3, rewards=[0.0, 1.0, float("nan"), 0.0])
    for trainer in (clean, disturbed):
        trainer.accumulate(make_groups(2, seed=1), 0)
    with pytest.raises(ValueError, match="sibling 2"):
        disturbed.accumulate(make_groups(1, seed=2) + bad, 0)
    assert clean.finish_step().groups == disturbed.finish_step().groups == 2
    assert_same_weights(clean.state_numpy(), disturbed.state_numpy())


def test_a_temperature_of_zero_is_refused(tiny_gpt2: str) -> None:
    trainer = make_trainer(tiny_gpt2)
    with pytest.raises(ValueError, match=r"temperature is 0\.0"):
        StepTrainer(trainer.policy_config, trainer.loss_config, trainer.optimizer_config, temperature=0.0)
