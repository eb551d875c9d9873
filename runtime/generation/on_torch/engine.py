"""The torch engine: any transformers causal LM with full attention, one token a step for all sequences at once.

A step admits waiting groups, reads their prompts (once a group, since siblings share them), decodes one token for every
active sequence, and removes the sequences that ended. So a short answer frees its row at once, without waiting for the
longest.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from runtime.generation.config import GenerationConfig, TorchEngineConfig
from runtime.generation.engine import (
    EngineHealth,
    GeneratedGroup,
    GeneratedSequence,
    GroupRequest,
    PolicyNotFinite,
    RequestRefused,
    Weights,
    WeightsMismatch,
    check_requests,
)
from runtime.generation.on_torch.cached_model import CachedModel
from runtime.generation.on_torch.sampling import sample, uniforms
from runtime.generation.on_torch.self_check import check_computes_alike, check_supported
from runtime.models.loading import load_pretrained
from runtime.models.weights import import_weights, mismatch


@dataclass(slots=True, eq=False)
class _Group:
    """A request in flight. `submission` is the number of its submit call."""

    request: GroupRequest
    submission: int
    start_weight: int
    finished: dict[int, GeneratedSequence] = field(default_factory=dict)
    """By sibling."""


@dataclass(slots=True, eq=False)
class _Sequence:
    """An active sequence. The cache has `columns` of its tokens; `last_token` is the next one to read."""

    group: _Group
    sibling: int
    uniforms: npt.NDArray[np.float32]
    columns: int
    last_token: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class TorchEngine:
    """The engine, stepwise: its owner calls `step` while it has work. `loop.EngineLoop` makes it an `Engine`.

    It owns `model`: it puts it into evaluation mode, and `load_weights` overwrites its weights. Not thread-safe.
    """

    def __init__(
        self, model: PreTrainedModel, config: GenerationConfig, *, stop_token_ids: Sequence[int], version: int = 0
    ):
        """Raises UnsupportedModel if the cache cannot serve the model, RequestRefused if `config` names another engine.

        stop_token_ids: the model's own (`text.model_stop_tokens`); those of `config` are added.
        """
        if not isinstance(config.engine, TorchEngineConfig):
            raise RequestRefused(f"generation.engine.name is {config.engine.name!r}; TorchEngine needs 'torch'")
        tokens = config.max_prompt_tokens + config.max_new_tokens
        check_supported(model, tokens)
        self._config = config
        self._limits = config.engine
        self._policy = CachedModel(model, self._limits.max_batch_sequences)
        check_computes_alike(self._policy.model, tokens)
        self._stop = frozenset(stop_token_ids) | frozenset(config.stop_token_ids)
        self._version = version
        self._submissions = 0
        self._groups: dict[str, _Group] = {}
        self._waiting: deque[_Group] = deque()
        self._rows: list[_Sequence] = []
        self._generated_tokens = 0
        self._busy_s = 0.0

    @property
    def has_work(self) -> bool:
        return bool(self._groups)

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        """Queue requests, or raise and queue none. With batching `whole` they are decoded together, without others."""
        check_requests(requests, self._config, self._groups)
        for request in requests:
            group = _Group(request, self._submissions, self._version)
            self._groups[request.request_id] = group
            self._waiting.append(group)
        self._submissions += 1

    def abort(self, request_id: str) -> bool:
        """Stop a request and free its rows. Returns False if it is not in flight."""
        group = self._groups.pop(request_id, None)
        if group is None:
            return False
        if group in self._waiting:
            self._waiting.remove(group)
        else:
            with torch.inference_mode():
                self._remove([index for index, row in enumerate(self._rows) if row.group is group])
        return True

    def abort_all(self) -> tuple[str, ...]:
        """Stop every request and clear the cache. Returns the ids of those that were in flight."""
        aborted = tuple(self._groups)
        self._groups.clear()
        self._waiting.clear()
        self._rows.clear()
        self._policy.cache.reset()
        return aborted

    def load_weights(self, weights: Weights, version: int) -> int:
        """Requests in flight keep their tokens and their cache."""
        reason = mismatch(self._policy.model, weights)
        if reason is not None:
            raise WeightsMismatch.because(reason, version=version, kept=self._version)
        import_weights(self._policy.model, weights)
        self._version = version
        return version

    def health(self) -> EngineHealth:
        return EngineHealth(
            version=self._version,
            active_sequences=len(self._rows),
            waiting_groups=len(self._waiting),
            generated_tokens=self._generated_tokens,
            busy_s=self._busy_s,
        )

    def step(self) -> tuple[GeneratedGroup, ...]:
        """Admit waiting groups, then decode one token for every active sequence. Returns the groups that ended.

        Raises PolicyNotFinite after aborting every request.
        """
        started = time.perf_counter()
        with torch.inference_mode():
            self._admit()
            finished = self._decode() if self._rows else ()
        self._busy_s += time.perf_counter() - started
        return finished

    def _admit(self) -> None:
        """Give rows to waiting groups in order, each as a whole, as long as the next one fits."""
        admitted: list[_Group] = []
        rows = len(self._rows)
        current = self._rows[0].group.submission if self._rows else None
        while self._waiting:
            group = self._waiting[0]
            if rows + group.request.num_generations > self._limits.max_batch_sequences:
                break
            if self._limits.batching == "whole" and current is not None and group.submission != current:
                break
            current = group.submission
            rows += group.request.num_generations
            admitted.append(self._waiting.popleft())
        if admitted:
            self._prefill(admitted)

    def _prefill(self, groups: list[_Group]) -> None:
        """Read all but the last token of each prompt once, into the rows of all its siblings."""
        first_row = len(self._rows)
        for group in groups:
            request = group.request
            draws = uniforms(request.seed, request.num_generations, request.sampling.max_new_tokens)
            self._rows.extend(
                _Sequence(
                    group=group,
                    sibling=sibling,
                    uniforms=draws[sibling],
                    columns=len(request.prompt_token_ids) - 1,
                    last_token=int(request.prompt_token_ids[-1]),
                )
                for sibling in range(request.num_generations)
            )
        self._policy.cache.reserve(
            len(self._rows),
            max(len(group.request.prompt_token_ids) + group.request.sampling.max_new_tokens for group in groups),
        )
        self._policy.prefill(
            [group.request.prompt_token_ids for group in groups],
            [group.request.num_generations for group in groups],
            first_row,
        )

    def _decode(self) -> tuple[GeneratedGroup, ...]:
        """Read the last token of every row, sample the next, and remove the rows that ended."""
        rows = self._rows
        logits = self._policy.decode([row.last_token for row in rows], [row.columns for row in rows])
        draws = torch.tensor([row.uniforms[len(row.tokens)] for row in rows], device=self._policy.device)
        ids, logprobs = sample(logits, [row.group.request.sampling for row in rows], draws)
        if not bool(torch.isfinite(logprobs).all()):
            raise PolicyNotFinite(self._version, self.abort_all())

        self._generated_tokens += len(rows)
        ended: list[int] = []
        for index, (row, token, logprob) in enumerate(zip(rows, ids.tolist(), logprobs.tolist(), strict=True)):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.last_token = token
            row.columns += 1
            if token in self._stop or len(row.tokens) == row.group.request.sampling.max_new_tokens:
                ended.append(index)
        finished = [group for group in map(self._end, (rows[index] for index in ended)) if group is not None]
        self._remove(ended)
        return tuple(finished)

    def _end(self, row: _Sequence) -> GeneratedGroup | None:
        """Keep a row's completion. Returns its group if it was the last of the siblings."""
        group = row.group
        request = group.request
        group.finished[row.sibling] = GeneratedSequence(
            token_ids=np.array(row.tokens, dtype=np.int32),
            logprobs=np.array(row.logprobs, dtype=np.float32),
            finished=row.last_token in self._stop,
        )
        if len(group.finished) < request.num_generations:
            return None
        del self._groups[request.request_id]
        return GeneratedGroup(
            request_id=request.request_id,
            sequences=tuple(group.finished[sibling] for sibling in range(request.num_generations)),
            start_weight=group.start_weight,
            end_weight=self._version,
        )

    def _remove(self, removed: list[int]) -> None:
        """Remove rows, given in ascending order, and fill the holes from the end."""
        if not removed:
            return
        left = len(self._rows) - len(removed)
        gone = set(removed)
        holes = [index for index in removed if index < left]
        movers = [index for index in range(left, len(self._rows)) if index not in gone]
        self._policy.cache.move(movers, holes, max(row.columns for row in self._rows))
        for hole, mover in zip(holes, movers, strict=True):
            self._rows[hole] = self._rows[mover]
        del self._rows[left:]


def load_torch_engine(model_directory: Path, config: GenerationConfig, *, stop_token_ids: Sequence[int]) -> TorchEngine:
    """The engine for a Hugging Face model directory. Sets torch's number of threads for this process.

    Raises the errors of TorchEngine and of `load_pretrained`.
    """
    if not isinstance(config.engine, TorchEngineConfig):
        raise RequestRefused(f"generation.engine.name is {config.engine.name!r}; load_torch_engine needs 'torch'")
    torch.set_num_threads(config.engine.threads)
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    model = load_pretrained(model_directory, dtypes[config.engine.precision])
    module: torch.nn.Module = model  # transformers wraps `to` in a way that type checkers cannot follow
    module.to(config.engine.device)
    return TorchEngine(model, config, stop_token_ids=stop_token_ids)
