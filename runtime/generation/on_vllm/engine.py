"""vLLM's asynchronous engine as an Engine.

Consumes: submitted requests; weights.
Waits for: vLLM, which generates in processes of its own.
Unblocked by: the end of a group's last sibling.
Produces: one resolved future a request.

Weights reach vLLM as safetensors files in shared memory, in the names of the model directory, so every rank reads
its part, and vLLM repacks it as at its start. Meanwhile its scheduler is paused: what it has computed stays, and the
requests in flight go on with the new weights. vLLM itself labels every token with the version that sampled it.

Siblings share their prompt's keys and values through vLLM's prefix cache. It outlives a load, so each request is
salted with the number of loads before it: none finds a prefix that older weights computed.
"""

from __future__ import annotations

import asyncio
import ctypes
import shutil
import tempfile
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from runtime.generation.config import GenerationConfig, VllmEngineConfig
from runtime.generation.engine import (
    EngineHealth,
    GeneratedGroup,
    GeneratedSequence,
    GroupRequest,
    Sampling,
    Weights,
)
from runtime.generation.errors import (
    GenerationAborted,
    PolicyNotFinite,
    RequestRefused,
    WeightsMismatch,
)
from runtime.generation.on_vllm.setup import (
    check_measurable,
    check_vllm_installed,
    engine_args,
    kv_cache_bytes,
    logprobs_mode,
    sampling_params,
    set_environment,
)
from runtime.generation.request_checks import check_requests
from runtime.models.errors import UnsupportedModel
from runtime.models.skeleton import model_without_memory
from runtime.models.weights import as_in_files, mismatch

if TYPE_CHECKING:
    from vllm import CompletionOutput, RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

_SHARED_MEMORY = Path("/dev/shm")
_RELOADED = 0.05
"""How far log-probabilities may move by a reload of the same weights: rounding, should vLLM sum in another order."""
_SHUTDOWN_S = 30.0
"""How long vLLM's processes may take to end before they are killed."""


@dataclass(frozen=True, slots=True, eq=False)
class _InFlight:
    """A request that vLLM has. `task` waits for vLLM, `future` is what the caller awaits."""

    request: GroupRequest
    start_weight: int
    future: asyncio.Future[GeneratedGroup]
    task: asyncio.Task[GeneratedGroup]


class VllmEngine:
    """`Engine` over vLLM. Enter it (`async with`) to start vLLM; leaving aborts what is in flight and ends vLLM."""

    def __init__(
        self, model_directory: Path, config: GenerationConfig, *, stop_token_ids: Sequence[int], version: int = 0
    ):
        """Raises VllmMissing where it is not installed, and RequestRefused when `config` names another engine or
        samples in a way whose log-probabilities vLLM cannot report.

        stop_token_ids: end a completion, beside those in `config`: the model's own (`runtime.models.stops`).
        """
        if not isinstance(config.engine, VllmEngineConfig):
            raise RequestRefused(f"generation.engine.name is {config.engine.name!r}; VllmEngine needs 'vllm'")
        check_vllm_installed()
        self._directory = model_directory
        self._config = config
        self._engine_config = config.engine
        self._stop = tuple(sorted(frozenset(stop_token_ids) | frozenset(config.stop_token_ids)))
        self._logprobs_mode = logprobs_mode(config)
        self._reference = model_without_memory(model_directory)
        self._version = version
        self._loads = 0
        self._in_flight: dict[str, _InFlight] = {}
        self._generated_tokens = 0
        self._busy_s = 0.0
        self._busy_since: float | None = None
        self._llm: AsyncLLM

    async def __aenter__(self) -> Self:
        """Blocks the event loop for the 10 to 30 s that vLLM takes to start.

        Raises UnsupportedModel where vLLM refuses the model, or computes another one once it has reloaded it.
        """
        set_environment(self._engine_config)
        from vllm.v1.engine.async_llm import AsyncLLM

        try:
            args = engine_args(self._directory, self._config, self._engine_config)
            settings = args.create_engine_config()
        except ValueError as error:
            raise UnsupportedModel(f"vLLM refuses {self._directory} as configured: {error}") from error
        self._llm = AsyncLLM.from_vllm_config(settings, disable_log_stats=True)
        # vLLM tells the requests that it has registered when it dies, but not those on their way in.
        dead = self._llm.dead_error
        self._llm.output_handler.add_done_callback(lambda _: self._fail_all(dead))
        self._kv_cache_bytes = kv_cache_bytes(settings)
        try:
            await self._llm.update_weight_version(str(self._version))
            await self._check_reload()
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """See Engine.submit. Sibling k of a request draws with seed + k."""
        check_requests(requests, self._config, self._in_flight)
        for request in requests:
            check_measurable(request, self._logprobs_mode)
        return [self._start(request) for request in requests]

    def abort(self, request_id: str) -> bool:
        """See Engine.abort. Whoever awaits the request gets GenerationAborted."""
        entry = self._in_flight.get(request_id)
        if entry is None:
            return False
        self._stop_with(entry, GenerationAborted(request_id))
        return True

    async def load_weights(self, weights: Weights, version: int) -> int:
        """See Engine.load_weights. One load at a time.

        When vLLM fails in the middle of it, that is raised, nobody knows what it would run, and it stays paused: all
        requests in flight fail with the same error, and the engine can only be left.
        """
        reason = mismatch(self._reference, weights)
        if reason is not None:
            raise WeightsMismatch(
                f"weight version {version} does not fit the model of this engine, which keeps version "
                f"{self._version}: {reason}; trainer and generation must load the same model directory"
            )
        with tempfile.TemporaryDirectory(prefix="evenstep-weights-", dir=_scratch(weights)) as directory:
            await asyncio.to_thread(write_for_vllm, self._reference, weights, Path(directory))
            try:
                await self._unless_dead(self._replace_weights(directory, version))
            except BaseException as error:
                self._fail_all(error)
                raise
        return self._version

    def health(self) -> EngineHealth:
        """See Engine.health. `generated_tokens` counts groups that finished. Raises vLLM's error when it has died."""
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
            kv_cache_bytes=self._kv_cache_bytes,
        )

    def _start(self, request: GroupRequest) -> asyncio.Future[GeneratedGroup]:
        task = asyncio.create_task(self._generate(request, self._version), name=f"vllm {request.request_id}")
        entry = _InFlight(request, self._version, asyncio.get_running_loop().create_future(), task)
        if not self._in_flight:
            self._busy_since = time.perf_counter()
        self._in_flight[request.request_id] = entry
        task.add_done_callback(partial(self._ended, entry))
        return entry.future

    async def _generate(self, request: GroupRequest, start_weight: int) -> GeneratedGroup:
        prompt = {"prompt_token_ids": request.prompt_token_ids.tolist(), "cache_salt": str(self._loads)}
        output: RequestOutput
        async for output in self._llm.generate(prompt, sampling_params(request, self._stop), request.request_id):
            # There is just one: the group when all of it is there.
            return _group(request, start_weight, output.outputs, self._stop)
        raise GenerationAborted(request.request_id)

    def _ended(self, entry: _InFlight, task: asyncio.Task[GeneratedGroup]) -> None:
        """Hand on how a request ended by itself; who cancelled its task has told its caller."""
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
        entry.task.cancel()  # upon which vLLM aborts the request
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
        # What is submitted from here on starts under what vLLM says it runs.
        self._version = int(await self._llm.get_weight_version())
        self._loads += 1
        await self._llm.resume_generation()

    async def _check_reload(self) -> None:
        """Reload the weights that vLLM has just loaded, as every sync will: it must compute the same after that.

        It does not for every architecture and platform: mixtures of experts come out wrong on a CPU (vLLM 0.32).
        """
        before = await self._likeliest()
        await self._unless_dead(self._replace_weights(str(self._directory), self._version))
        after = await self._likeliest()
        if not np.allclose(before, after, rtol=0, atol=_RELOADED):
            raise UnsupportedModel(
                f"vLLM computes something else after reloading the weights of {type(self._reference).__name__}: the "
                f"likeliest tokens after four prompts had log-probabilities {_rounded(before)}, and then "
                f"{_rounded(after)}. No sync would arrive; use generation.engine.name: torch, or another model"
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
        """Wait for calls to vLLM, which would never be answered if it died meanwhile. Raises its error then."""
        task = asyncio.create_task(call)
        try:
            await asyncio.wait({task, self._llm.output_handler}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise self._llm.dead_error
            task.result()
        finally:
            task.cancel()

    def _waiting_groups(self, sequences: int) -> int:
        """How many of the newest groups wait as a whole, when this many sequences wait. vLLM admits in order."""
        groups = 0
        for entry in reversed(self._in_flight.values()):
            sequences -= entry.request.num_generations
            if sequences < 0:
                break
            groups += 1
        return groups


def _group(
    request: GroupRequest, start_weight: int, outputs: Sequence[CompletionOutput], stop: Sequence[int]
) -> GeneratedGroup:
    """vLLM's completions as a group. Raises PolicyNotFinite."""
    end_weight = max(int(output.weight_versions[-1].version) for output in outputs)
    sequences = tuple(_sequence(output, stop) for output in outputs)
    if not all(np.isfinite(sequence.logprobs).all() for sequence in sequences):
        raise PolicyNotFinite(end_weight, (request.request_id,))
    copies = request.num_generations // len(sequences)  # of the one sibling of greedy decoding
    return GeneratedGroup(request.request_id, sequences * copies, start_weight, end_weight)


def _sequence(output: CompletionOutput, stop: Sequence[int]) -> GeneratedSequence:
    token_ids = np.array(output.token_ids, dtype=np.int32)
    logprobs = np.array(output.logprobs.logprobs, dtype=np.float32)
    assert len(token_ids) == len(logprobs), "logprobs=0 means one a token"
    # Not vLLM's finish_reason, which is "length" for a stop token at the limit.
    return GeneratedSequence(token_ids, logprobs, finished=int(token_ids[-1]) in stop)


def _rounded(logprobs: npt.NDArray[np.float32]) -> list[float]:
    return [round(float(logprob), 2) for logprob in logprobs]


def _fail(future: asyncio.Future[GeneratedGroup], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _scratch(weights: Weights) -> Path | None:
    """Shared memory where it has room for these weights, else None, tempfile's own choice."""
    if not _SHARED_MEMORY.is_dir():
        return None
    room = shutil.disk_usage(_SHARED_MEMORY).free
    return _SHARED_MEMORY if room > sum(array.nbytes for array in weights.values()) else None


def write_for_vllm(reference: PreTrainedModel, weights: Weights, directory: Path) -> None:
    """Files as vLLM reads them, under the names of the model directory; one a weight, so that few are copied at a time.

    `reference` is the model of these weights, for its names and shapes.
    """
    tensors = {name: _tensor(array) for name, array in weights.items()}
    for number, (name, tensor) in enumerate(as_in_files(reference, tensors).items()):
        save_file({name: tensor.contiguous()}, directory / f"{number:05}.safetensors")


def _tensor(array: npt.NDArray[np.generic]) -> torch.Tensor:
    """Over the array's own memory, and valid as long as the array is. It may be read-only: nothing may write to it."""
    # torch.from_numpy warns of a read-only array, and a copy of all weights at a time is too much.
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data))
    tensor = torch.from_numpy(memory.view(array.dtype).reshape(array.shape))
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
