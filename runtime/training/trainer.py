"""StepTrainer: one optimizer step from any number of chunks.

    accumulate(groups, version)   any number of times: adds the undivided gradient of whole prompt groups
    finish_step()                 divides once, by what the step accumulated; clips, steps, zeroes. If a number is not
                                  finite, on whichever rank, no rank applies the step
    discard()                     drops the gradient of an unfinished step

The gradient of a sum is the sum of the gradients, and nothing is divided before the end. So the update depends on the
groups alone, not on their cut into chunks and microbatches.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from runtime.groups import RolloutGroup
from runtime.models.final import save_model_directory
from runtime.models.weights import Array, named_weights
from runtime.training.batching import Microbatch, empty_microbatch, microbatches, training_sequences
from runtime.training.config import LossConfig, OptimizerConfig, PolicyConfig
from runtime.training.finite import Look, fault_of_update, first_cause, largest, look
from runtime.training.loss import normaliser, policy_loss
from runtime.training.model import (
    check_context,
    checkpoint_layers,
    freeze_all_but_last_layers,
    load_causal_lm,
    token_logprobs,
    trainable_parameters,
)
from runtime.training.optim import (
    adamw,
    gradient_norm,
    learning_rate,
    scale_and_clip_gradients,
    set_learning_rate,
)
from runtime.training.ranks import Ranks, alone, gathered, shard_model
from runtime.training.state import StateCopy, StepCount, copy_state, load_state, state_numpy
from runtime.training.step_metrics import NotFinite, Number, StepMetrics, WeightsNotFinite
from runtime.training.totals import StepSums, added, no_sums, total_over_ranks


class StepTrainer:
    """A policy, its optimizer, and the step in progress.

    Each rank has a StepTrainer, and all call the same methods in the same order; `accumulate` gets the rank's own share
    of the chunk (`share_of_rank`), which may be empty. `policy.threads` is set for the whole process.

    temperature: of sampling: the policy is softmax(logits / temperature).
    ranks: None for a single process on the CPU.

    Raises FileNotFoundError if `policy.model_name` is not a model directory, UnsupportedModel if weights in it are not
    finite, ValueError if the model takes fewer tokens than `max_total_sequence_length` or has fewer layers than
    `train_last_layers`.
    """

    def __init__(
        self,
        policy: PolicyConfig,
        loss: LossConfig,
        optimizer: OptimizerConfig,
        *,
        temperature: float = 1.0,
        ranks: Ranks | None = None,
    ) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature is {temperature}: the trainer needs the temperature of sampling, above 0")
        torch.set_num_threads(policy.threads)
        self.policy_config = policy
        self.loss_config = loss
        self.optimizer_config = optimizer
        self.temperature = temperature
        self.ranks = alone() if ranks is None else ranks
        self.version = 0
        """Optimizer steps done, also those that were not applied."""
        self.not_applied = 0
        """Those of them whose numbers were not finite. The schedule leaves them out."""

        self.model = load_causal_lm(policy.model_name)
        check_context(self.model, policy.max_total_sequence_length)
        self._vocabulary = int(self.model.config.get_text_config().vocab_size)
        if policy.gradient_checkpointing:
            checkpoint_layers(self.model)
        if policy.train_last_layers is not None:
            freeze_all_but_last_layers(self.model, policy.train_last_layers)
        self._place(self.model)
        self.reference: nn.Module | None = None
        """The initial model, frozen; None without a KL penalty."""
        if loss.reference_policy_kl_penalty > 0:
            self.reference = load_causal_lm(policy.model_name).requires_grad_(False)
            self._place(self.reference)
        self.optimizer = adamw((parameter for _, parameter in trainable_parameters(self.model)), optimizer)

        self._largest_weight = 0.0
        self._sums: StepSums[Tensor]
        self._looks: list[Look]
        self._seconds: float
        self.discard()
        self._measure_weights("the model cannot be trained")

    def accumulate(self, groups: Sequence[RolloutGroup], version: int) -> None:
        """Add the gradient of a chunk of whole prompt groups, possibly none, to the step.

        Raises ValueError for another version than this trainer's, a group from the future, or a rollout that cannot be
        trained on. All groups are checked first, so the step is then unchanged. After any other error (memory, a lost
        rank) part of the chunk may have been added: `discard` the step.
        """
        started = time.perf_counter()
        if version != self.version:
            raise ValueError(
                f"a chunk for version {version}, but the trainer is at version {self.version}: "
                "finish or discard the step first, or load the checkpoint of that version"
            )
        group_sums = _sum_groups(groups, version, self.ranks.device)
        sequences = training_sequences(
            groups,
            self.loss_config,
            max_total_sequence_length=self.policy_config.max_total_sequence_length,
            vocabulary=self._vocabulary,
        )
        for batch in self._as_many_as_any_rank(microbatches(sequences, self.policy_config.train_microbatch_tokens)):
            self._sums = added(self._sums, self._backward(batch.to(self.ranks.device)))
        self._sums = added(self._sums, group_sums)
        self._seconds += time.perf_counter() - started

    def finish_step(self) -> StepMetrics:
        """Divide the gradient, clip it, move the weights, and begin the next step.

        If every rollout was masked (overlong filtering), the gradient is empty: weights and AdamW's moments stay, and
        the version moves anyway. If a number of the step is not finite, also the schedule stays, and the metrics say
        which number (`not_finite`).

        Raises RuntimeError if no rank accumulated a group: nothing has moved then, and `discard` drops the step.
        WeightsNotFinite if the step made weights that are not finite, which must not be saved.
        """
        started = time.perf_counter()
        totals = total_over_ranks(self._sums, self.ranks)
        if totals.groups == 0:
            raise RuntimeError(f"finish_step at version {self.version} without a group: accumulate one first")
        tokens, sequences = round(totals.tokens), round(totals.sequences)
        divisor = normaliser(
            self.loss_config.aggregation,
            tokens=tokens,
            sequences=sequences,
            dr_grpo_length=self.loss_config.dr_grpo_length or self.policy_config.max_total_sequence_length,
        )
        lr = learning_rate(self.version - self.not_applied, self.optimizer_config)
        grad_norm, not_finite = 0.0, None
        if totals.tokens > 0:
            grad_norm = gradient_norm(self._trained(), divisor=divisor)
            not_finite = self._not_finite(totals.loss, grad_norm, lr)
        if not_finite is not None:
            self.not_applied += 1
        elif totals.tokens > 0:
            self._apply(grad_norm, divisor, lr)
        self.version += 1
        trained = max(totals.tokens, 1)  # a step whose rollouts were all masked has zeros
        metrics = StepMetrics(
            version=self.version,
            loss=totals.loss / max(divisor, 1),
            grad_norm=grad_norm,
            lr=lr,
            kl=totals.kl / trained,
            reference_kl=None if self.reference is None else totals.reference_kl / trained,
            entropy=totals.entropy / trained,
            clip_fraction=(totals.clipped_low + totals.clipped_high) / trained,
            clip_fraction_low=totals.clipped_low / trained,
            clip_fraction_high=totals.clipped_high / trained,
            importance_weight_mean=totals.importance_weight / trained,
            importance_weight_max=totals.importance_weight_max,
            logprob_mismatch_mean=totals.mismatch / trained,
            logprob_mismatch_max=totals.mismatch_max,
            logprob_mismatch_share=totals.mismatched / trained,
            tokens=tokens,
            sequences=sequences,
            masked_sequences=round(totals.rollouts) - sequences,
            groups=round(totals.groups),
            reward=totals.reward / totals.rollouts,
            staleness_mean=totals.staleness / totals.groups,
            staleness_max=round(totals.staleness_max),
            seconds=self._seconds + time.perf_counter() - started,
            not_finite=not_finite,
        )
        self.discard()
        return metrics

    def _not_finite(self, loss: float, grad_norm: float, lr: float) -> NotFinite | None:
        """Why the step cannot be applied, the same on all ranks. A collective: every rank must call it."""
        fault = fault_of_update(
            loss=loss,
            norm=grad_norm,
            max_grad_norm=self.optimizer_config.max_grad_norm,
            lr=lr,
            weight_decay=self.optimizer_config.weight_decay,
            weight=self._largest_weight,
        )
        agreed = self.ranks.maximum(torch.tensor(float(fault is not None), device=self.ranks.device))
        if not agreed.item():
            return None
        return first_cause(self._looks, self.ranks) or NotFinite(fault or Number.GRADIENT)

    def _apply(self, grad_norm: float, divisor: float, lr: float) -> None:
        """Move the weights. Raises WeightsNotFinite."""
        scale_and_clip_gradients(
            self._trained(), norm=grad_norm, divisor=divisor, max_grad_norm=self.optimizer_config.max_grad_norm
        )
        set_learning_rate(self.optimizer, lr)
        self.optimizer.step()
        self._measure_weights(f"the optimizer step {self.version} overflowed (lower optimizer.lr)")

    def _measure_weights(self, otherwise: str) -> None:
        """Raise WeightsNotFinite unless all weights are finite. A collective: every rank must call it."""
        self._largest_weight = largest(self.model.parameters(), self.ranks)
        if not math.isfinite(self._largest_weight):
            raise WeightsNotFinite(f"{otherwise}: weights are NaN or infinite")

    def _trained(self) -> Iterator[nn.Parameter]:
        return (parameter for _, parameter in trainable_parameters(self.model))

    def discard(self) -> None:
        """Drop the accumulated gradient of an unfinished step. The weights and the version stay."""
        self.optimizer.zero_grad(set_to_none=True)
        self._sums = no_sums(self.ranks.device)
        self._looks = []
        self._seconds = 0.0

    def state_numpy(self, dtype: Literal["float32", "bfloat16"] = "float32") -> dict[str, Array]:
        """The weights by name, as read-only arrays (`models.weights.to_numpy`). A collective: every rank must call it.

        Only rank 0 gets the arrays, the others an empty dict. In float32 on the CPU they are the model's own memory:
        copy them, or put them into the object store, before the next `finish_step`.
        """
        return {name: array for name, array in state_numpy(self.model, dtype) if self.ranks.rank == 0}

    def copy_state(self) -> StateCopy | None:
        """A copy of model, optimizer, version and random state, for `state.write_state`.

        A collective: every rank must call it. Only rank 0 gets the copy.
        """
        steps = StepCount(self.version, self.not_applied)
        return copy_state(model=self.model, optimizer=self.optimizer, steps=steps, ranks=self.ranks)

    def save_model(self, target: Path, chat_template: str | None = None) -> Path:
        """Write the policy as a Hugging Face directory (`final.save_model_directory`) and return `target`.

        A collective: every rank must call it. Rank 0 writes, and raises ModelNotSaved.
        """
        writer = self.ranks.rank == 0
        weights = gathered(dict(named_weights(self.model)), keep=writer)
        if writer:
            source = Path(self.policy_config.model_name)
            save_model_directory(target, source=source, model=self.model, weights=weights, chat_template=chat_template)
        return target

    def load(self, directory: Path) -> None:
        """Resume from the files of `state.write_state`. Discards the step in progress.

        Raises WeightsNotFinite too.
        """
        steps = load_state(directory, model=self.model, optimizer=self.optimizer, ranks=self.ranks)
        self.version, self.not_applied = steps
        self.discard()
        self._measure_weights(f"{directory} cannot be resumed from")

    def _place(self, model: nn.Module) -> None:
        if self.ranks.mesh is None:
            model.to(self.ranks.device)
        else:
            shard_model(model, self.policy_config.precision, self.ranks)

    def _as_many_as_any_rank(self, batches: list[Microbatch]) -> list[Microbatch]:
        """Fill up with empty microbatches: each pass is a collective, so all ranks must run the same number."""
        if self.ranks.mesh is None:
            return batches
        most = int(self.ranks.maximum(torch.tensor(len(batches), device=self.ranks.device)).item())
        return batches + [empty_microbatch()] * (most - len(batches))

    def _backward(self, batch: Microbatch) -> StepSums[Tensor]:
        reference_logprobs: Tensor | None = None
        if self.reference is not None:
            with torch.no_grad(), self._autocast():
                reference_logprobs, _ = token_logprobs(
                    self.reference, batch, temperature=self.temperature, entropy_gradient=False
                )
        with self._autocast():
            with_entropy = self.loss_config.entropy_coefficient > 0
            logprobs, entropy = token_logprobs(
                self.model, batch, temperature=self.temperature, entropy_gradient=with_entropy
            )
        loss, sums = policy_loss(
            logprobs=logprobs,
            entropy=entropy,
            generation_logprobs=batch.generation_logprobs,
            reference_logprobs=reference_logprobs,
            advantages=batch.advantages,
            mask=batch.loss_mask,
            config=self.loss_config,
        )
        torch.autograd.backward(loss)
        self._looks.append(
            look(
                batch,
                reference_logprobs=reference_logprobs,
                logprobs=logprobs.detach(),
                loss=loss,
                gradients=(parameter.grad for parameter in self._trained()),
            )
        )
        return sums

    def _autocast(self) -> AbstractContextManager[object]:
        # FSDP2's mixed precision computes in bfloat16 itself.
        if self.policy_config.precision == "float32" or self.ranks.mesh is not None:
            return nullcontext()
        return torch.autocast(self.ranks.device.type, dtype=torch.bfloat16)


def _sum_groups(groups: Sequence[RolloutGroup], version: int, device: torch.device) -> StepSums[Tensor]:
    for group in groups:
        if group.start_weight > version:
            raise ValueError(
                f"prompt {group.prompt} started under version {group.start_weight}, later than the version "
                f"{version} that trains: its weights were synced before the step was reported"
            )
    staleness = [version - group.start_weight for group in groups]
    sums = {
        "groups": len(groups),
        "rollouts": sum(len(group.rollouts) for group in groups),
        "reward": sum(rollout.reward for group in groups for rollout in group.rollouts),
        "staleness": sum(staleness),
        "staleness_max": max(staleness, default=0),
    }
    as_tensors = {name: torch.tensor(value, dtype=torch.float64, device=device) for name, value in sums.items()}
    return no_sums(device)._replace(**as_tensors)
