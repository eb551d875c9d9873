"""vLLM's asynchronous engine as an Engine.

Consumes: submitted requests; weights.
Waits for: vLLM, which generates in its own processes.
Unblocked by: the end of a group's last sibling.
Produces: one resolved future a request.

Weights reach vLLM as safetensors files in shared memory, under the names of the model directory. Every rank reads its
part and vLLM repacks it as at its start. vLLM's scheduler is paused meanwhile: it keeps its cache, and the requests in
flight continue with the new weights. vLLM labels every token with the version that sampled it.

Siblings share their prompt's keys and values through vLLM's prefix cache. The cache outlives a load, so each request is
salted with the number of loads so far: no request finds a prefix that older weights computed.
"""

import asyncio
import ctypes
import shutil
import tempfile
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from runtime.generation.config import GenerationConfig, Sampling, VllmEngineConfig
from runtime.generation.engine import (
    EngineHealth,
    GeneratedGroup,
    GeneratedSequence,
    GenerationAborted,
    GroupRequest,
    PolicyNotFinite,
    RequestRefused,
    Weights,
    WeightsMismatch,
    check_requests,
)
from runtime.generation.on_vllm import setup
from runtime.models.directory import UnsupportedModel
from runtime.models.weights import as_in_files, mismatch, model_without_memory

if TYPE_CHECKING:
    from vllm import CompletionOutput, RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

_SHARED_MEMORY = Path("/dev/shm")
_RELOADED = 0.05
"""How much log-probabilities may change by a reload of the same weights, if vLLM sums in another order."""
_SHUTDOWN_S = 30.0
"""Deadline for vLLM's processes to end before they are killed."""


@dataclass(frozen=True, slots=True, eq=False)
class _InFlight:
    """A request in vLLM. `task` waits for vLLM, the caller awaits `future`."""

    request: GroupRequest
    future: asyncio.Future[GeneratedGroup]
    task: asyncio.Task[GeneratedGroup]


class VllmEngine:
    """`Engine` over vLLM. Enter it (`async with`) to start vLLM; leaving it aborts requests in flight and ends vLLM."""

    def __init__(self, model_directory: Path, config: GenerationConfig, *, stop_token_ids: Sequence[int]):
        """Raises VllmMissing, or RequestRefused if `config` names another engine or sampling that vLLM cannot measure.

        stop_token_ids: the model's own (`text.model_stop_tokens`); those of `config` are added.
        """
        if not isinstance(config.engine, VllmEngineConfig):
            raise RequestRefused(f"generation.engine.name is {config.engine.name!r}; VllmEngine needs 'vllm'")
        setup.check_vllm_installed()
        self._directory = model_directory
        self._config = config
        self._engine_config = config.engine
        self._stop = tuple(sorted(frozenset(stop_token_ids) | frozenset(config.stop_token_ids)))
        self._logprobs_mode = setup.logprobs_mode(config)
        self._reference = model_without_memory(model_directory)
        self._version = 0
        self._loads = 0
        self._in_flight: dict[str, _InFlight] = {}
        self._generated_tokens = 0
        self._busy_s = 0.0
        self._busy_since: float | None = None
        self._llm: AsyncLLM

    async def __aenter__(self) -> Self:
        """Blocks the event loop for the 10 to 30 s that vLLM takes to start.

        Raises UnsupportedModel if vLLM refuses the model, or computes something else after reloading it.
        """
        setup.set_environment(self._engine_config)
        from vllm.v1.engine.async_llm import AsyncLLM

        try:
            args = setup.engine_args(self._directory, self._config, self._engine_config)
            settings = args.create_engine_config()
        except ValueError as error:
            raise UnsupportedModel(f"vLLM refuses {self._directory} as configured: {error}") from error
        self._llm = AsyncLLM.from_vllm_config(settings, disable_log_stats=True)
        # When vLLM dies, it fails its registered requests, but not those that it is still receiving.
        dead = self._llm.dead_error
        self._llm.output_handler.add_done_callback(lambda _: self._fail_all(dead))
        try:
            await self._llm.update_weight_version(str(self._version))
            await self._check_reload()
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [entry.task for entry in self._in_flight.values()]
        for request_id in tuple(self._in_flight):
            self.abort(request_id)
        if tasks:
            await asyncio.wait(tasks)
        self._end()

    def _end(self) -> None:
        self._llm.shutdown(timeout=_SHUTDOWN_S)
        del self._llm

    def submit(self, requests: Sequence[GroupRequest]) -> list[asyncio.Future[GeneratedGroup]]:
        """Sibling k of a request draws with seed + k."""
        check_requests(requests, self._config, self._in_flight)
        for request in requests:
            setup.check_measurable(request, self._logprobs_mode)
        return [self._start(request) for request in requests]

    def abort(self, request_id: str) -> bool:
        entry = self._in_flight.get(request_id)
        if entry is None:
            return False
        self._stop_with(entry, GenerationAborted(request_id))
        return True

    async def load_weights(self, weights: Weights, version: int) -> int:
        """Call it for one load at a time.

        If vLLM fails during a load, its weights are undefined and it stays paused: all requests in flight fail with the
        same error, and the engine can only be left.
        """
        reason = mismatch(self._reference, weights)
        if reason is not None:
            raise WeightsMismatch.because(reason, version=version, kept=self._version)
        with tempfile.TemporaryDirectory(prefix="evenstep-weights-", dir=_scratch(weights)) as directory:
            await asyncio.to_thread(write_for_vllm, self._reference, weights, Path(directory))
            try:
                await self._unless_dead(self._replace_weights(directory, version))
            except BaseException as error:
                self._fail_all(error)
                raise
        return self._version

    def health(self) -> EngineHealth:
        """`generated_tokens` counts finished groups. Raises vLLM's error if vLLM has died."""
        if self._llm.errored:
            raise self._llm.dead_error
        unfinished = self._llm.get_num_unfinished_requests()
        active = min(unfinished, self._engine_config.max_batch_sequences)
        busy = 0.0 if self._busy_since is None else time.perf_counter() - self._busy_since
        return EngineHealth(
            version=self._version,
            active_sequences=active,
            waiting_groups=self._waiting_groups(unfinished - active),
            generated_tokens=self._generated_tokens,
            busy_s=self._busy_s + busy,
        )

    def _start(self, request: GroupRequest) -> asyncio.Future[GeneratedGroup]:
        task = asyncio.create_task(self._generate(request, self._version), name=f"vllm {request.request_id}")
        entry = _InFlight(request, asyncio.get_running_loop().create_future(), task)
        if not self._in_flight:
            self._busy_since = time.perf_counter()
        self._in_flight[request.request_id] = entry
        task.add_done_callback(partial(self._ended, entry))
        return entry.future

    async def _generate(self, request: GroupRequest, start_weight: int) -> GeneratedGroup:
        prompt = {"prompt_token_ids": request.prompt_token_ids.tolist(), "cache_salt": str(self._loads)}
        output: RequestOutput
        async for output in self._llm.generate(prompt, setup.sampling_params(request, self._stop), request.request_id):
            return _group(request, start_weight, output.outputs, self._stop)  # the one output has the whole group
        raise GenerationAborted(request.request_id)

    def _ended(self, entry: _InFlight, task: asyncio.Task[GeneratedGroup]) -> None:
        """Give a request's result or error to its caller. `_stop_with` does that for a cancelled task."""
        if task.cancelled():
            return
        error = task.exception()
        if self._in_flight.get(entry.request.request_id) is not entry:
            return
        self._remove(entry)
        if error is not None:
            _fail(entry.future, error)
            return
        group = task.result()
        self._generated_tokens += sum(len(sequence.token_ids) for sequence in group.sequences)
        if not entry.future.done():
            entry.future.set_result(group)

    def _fail_all(self, error: BaseException) -> None:
        for entry in tuple(self._in_flight.values()):
            self._stop_with(entry, error)

    def _stop_with(self, entry: _InFlight, error: BaseException) -> None:
        entry.task.cancel()  # vLLM then aborts the request
        self._remove(entry)
        _fail(entry.future, error)

    def _remove(self, entry: _InFlight) -> None:
        del self._in_flight[entry.request.request_id]
        if not self._in_flight:
            assert self._busy_since is not None
            self._busy_s += time.perf_counter() - self._busy_since
            self._busy_since = None

    async def _replace_weights(self, directory: str, version: int) -> None:
        await self._llm.pause_generation(mode="keep", clear_cache=False)
        await self._llm.collective_rpc("reload_weights", kwargs={"weights_path": directory})
        await self._llm.update_weight_version(str(version))
        self._version = int(await self._llm.get_weight_version())  # requests submitted from here on start under it
        self._loads += 1
        await self._llm.resume_generation()

    async def _check_reload(self) -> None:
        """Reload the weights that vLLM has just loaded, as every sync will, and check that it computes the same.

        Not every architecture and platform passes: mixtures of experts are wrong on a CPU (vLLM 0.32).
        """
        before = await self._likeliest()
        await self._unless_dead(self._replace_weights(str(self._directory), self._version))
        after = await self._likeliest()
        if not np.allclose(before, after, rtol=0, atol=_RELOADED):
            raise UnsupportedModel(
                f"vLLM computes something else after reloading the weights of {type(self._reference).__name__}: the "
                f"likeliest tokens after four prompts had log-probabilities {before.astype(float).round(2).tolist()}, "
                f"and then {after.astype(float).round(2).tolist()}. Syncs would not work; use generation.engine.name: "
                "torch, or another model"
            )

    async def _likeliest(self) -> npt.NDArray[np.float32]:
        """Log-probabilities of the likeliest next tokens after a few short prompts."""
        vocabulary = self._reference.config.get_text_config().vocab_size
        length = min(8, self._config.max_prompt_tokens)
        sampling = Sampling(temperature=0.0, max_new_tokens=1)
        found = []
        for row in range(4):
            prompt = np.array([(13 + 31 * row + 7 * column) % vocabulary for column in range(length)], dtype=np.int32)
            request = GroupRequest(f"reload-{self._loads}-{row}", prompt, 1, 0, sampling)
            group = await self._generate(request, self._version)
            found.append(group.sequences[0].logprobs[0])
        return np.array(found)

    async def _unless_dead(self, call: Coroutine[Any, Any, None]) -> None:
        """Wait for a call to vLLM. If vLLM dies, the call never returns, and this raises vLLM's error."""
        task = asyncio.create_task(call)
        try:
            await asyncio.wait({task, self._llm.output_handler}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise self._llm.dead_error
            task.result()
        finally:
            task.cancel()

    def _waiting_groups(self, sequences: int) -> int:
        """How many of the newest groups wait as a whole if this many sequences wait. vLLM admits in order."""
        groups = 0
        for entry in reversed(self._in_flight.values()):
            sequences -= entry.request.num_generations
            if sequences < 0:
                break
            groups += 1
        return groups


def _group(
    request: GroupRequest, start_weight: int, outputs: "Sequence[CompletionOutput]", stop: Sequence[int]
) -> GeneratedGroup:
    """vLLM's completions as a group. Raises PolicyNotFinite."""
    end_weight = max(int(output.weight_versions[-1].version) for output in outputs)
    sequences = tuple(_sequence(output, stop) for output in outputs)
    if not all(np.isfinite(sequence.logprobs).all() for sequence in sequences):
        raise PolicyNotFinite(end_weight, (request.request_id,))
    copies = request.num_generations // len(sequences)  # greedy decoding returns one sibling
    return GeneratedGroup(request.request_id, sequences * copies, start_weight, end_weight)


def _sequence(output: "CompletionOutput", stop: Sequence[int]) -> GeneratedSequence:
    token_ids = np.array(output.token_ids, dtype=np.int32)
    logprobs = np.array(output.logprobs.logprobs, dtype=np.float32)
    assert len(token_ids) == len(logprobs), "logprobs=0 means one a token"
    # vLLM's finish_reason would be "length" for a stop token at the limit.
    return GeneratedSequence(token_ids, logprobs, finished=int(token_ids[-1]) in stop)


def _fail(future: asyncio.Future[GeneratedGroup], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _scratch(weights: Weights) -> Path | None:
    """Shared memory if it has room for these weights, else None: tempfile's default."""
    if not _SHARED_MEMORY.is_dir():
        return None
    room = shutil.disk_usage(_SHARED_MEMORY).free
    return _SHARED_MEMORY if room > sum(array.nbytes for array in weights.values()) else None


def write_for_vllm(reference: PreTrainedModel, weights: Weights, directory: Path) -> None:
    """Write files as vLLM reads them, under the names of the model directory.

    One file a weight, so that few weights are copied at a time. `reference` is the model, for its names and shapes.
    """
    tensors = {name: _tensor(array) for name, array in weights.items()}
    for number, (name, tensor) in enumerate(as_in_files(reference, tensors).items()):
        save_file({name: tensor.contiguous()}, directory / f"{number:05}.safetensors")


def _tensor(array: npt.NDArray[np.generic]) -> torch.Tensor:
    """A tensor over the array's memory, valid as long as the array is. Never write to it: it may be read-only."""
    # torch.from_numpy warns about read-only arrays, and copying all weights at once takes too much memory.
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data))
    tensor = torch.from_numpy(memory.view(array.dtype).reshape(array.shape))
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
