"""What vLLM is started with: its arguments, its environment, and what it can report.

vLLM is imported inside the functions: it takes seconds, and only runs that name it need it installed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from runtime.generation.config import GenerationConfig, VllmEngineConfig
from runtime.generation.engine import GroupRequest, Sampling
from runtime.generation.errors import RequestRefused

if TYPE_CHECKING:
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.config import VllmConfig

LogprobsMode = Literal["processed_logprobs", "raw_logprobs"]
_CPU_KV_CACHE_BYTES = 512 * 1024**2
_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the cores belong to other actors as well
}


class VllmMissing(RuntimeError):
    """vLLM is not installed in this environment."""

    def __init__(self) -> None:
        super().__init__(
            "generation.engine.name is vllm, and vLLM is not installed in this environment; for GPUs: pip install "
            "'evenstep[train,vllm]'; for a CPU: scripts/setup_vllm_cpu.sh makes .venv-vllm, which has it"
        )


def check_vllm_installed() -> None:
    """Raises VllmMissing. Looks without importing (vLLM takes seconds to import)."""
    if find_spec("vllm") is None:
        raise VllmMissing


def logprobs_mode(config: GenerationConfig) -> LogprobsMode:
    """Which of the log-probabilities that vLLM can report are those of GeneratedSequence.

    Those after all processing (temperature, then top_k and top_p, which renormalise) are, unless top_k or top_p cut
    the tail; then the raw ones are, which are before the temperature too, so that it must be 1. Greedy decoding has
    neither in vLLM. Raises RequestRefused for top_k or top_p at another temperature, where neither is right.
    """
    if not _truncates(config.sampling()):
        return "processed_logprobs"
    _check_raw(config.sampling(), "generation")
    return "raw_logprobs"


def check_validation(config: GenerationConfig, temperature: float | None) -> None:
    """Raises RequestRefused where generation, or validation at its own temperature, cannot be measured by vLLM."""
    mode = logprobs_mode(config)
    if mode == "raw_logprobs" and temperature is not None:
        _check_raw(config.model_copy(update={"temperature": temperature}).sampling(), "validation")


def check_measurable(request: GroupRequest, mode: LogprobsMode) -> None:
    """Raises RequestRefused for a request whose log-probabilities this mode would get wrong."""
    sampling = request.sampling
    if mode == "raw_logprobs":
        _check_raw(sampling, f"request {request.request_id!r}")
    elif _truncates(sampling):
        raise RequestRefused(
            f"request {request.request_id!r} has top_k {sampling.top_k} and top_p {sampling.top_p}, but generation has "
            "neither, and vLLM was started to report log-probabilities accordingly: set generation.top_k or top_p too"
        )


def sampling_params(request: GroupRequest, stop_token_ids: Sequence[int]) -> SamplingParams:
    """vLLM's form of a request. Greedy siblings are equal, so vLLM is asked for one of them."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling
    greedy = sampling.temperature == 0
    return SamplingParams(
        n=1 if greedy else request.num_generations,
        seed=request.seed,  # of sibling 0; sibling k has seed + k
        temperature=sampling.temperature,
        top_p=1.0 if greedy else sampling.top_p,
        top_k=-1 if greedy or sampling.top_k is None else sampling.top_k,
        max_tokens=sampling.max_new_tokens,
        stop_token_ids=list(stop_token_ids),
        ignore_eos=True,  # what ends a completion is in stop_token_ids
        logprobs=0,  # those of the sampled tokens alone
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def engine_args(model_directory: Path, config: GenerationConfig, engine: VllmEngineConfig) -> AsyncEngineArgs:
    """What AsyncLLM is made with."""
    from vllm import AsyncEngineArgs
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    return AsyncEngineArgs(
        model=str(model_directory),
        dtype=engine.precision,
        max_model_len=config.max_prompt_tokens + config.max_new_tokens,
        max_num_seqs=engine.max_batch_sequences,
        tensor_parallel_size=engine.tensor_parallel_size,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        kv_cache_memory_bytes=engine.kv_cache_memory_bytes or (_CPU_KV_CACHE_BYTES if on_cpu else None),
        # Splitting the prompt of a request that has a seed kills vLLM 0.32 on a CPU (it rewinds the generator, which
        # torch's CPU generator cannot do), so there every prompt is read whole.
        enable_chunked_prefill=not on_cpu,
        enforce_eager=engine.enforce_eager,
        logprobs_mode=logprobs_mode(config),
        enable_prefix_caching=True,  # siblings share their prompt
        skip_tokenizer_init=True,
        generation_config="vllm",  # no sampling defaults out of the model directory
        load_format="safetensors",
        use_tqdm_on_load=False,
        enable_log_requests=False,
        disable_log_stats=True,
    )


def set_environment(engine: VllmEngineConfig) -> None:
    """Set the variables of vLLM's processes, which inherit this one's; to be called before vLLM is imported.

    The number of threads is the configuration's, whatever Ray has set for this process. What else is set already stays.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ["OMP_NUM_THREADS"] = str(engine.threads)


def kv_cache_bytes(config: VllmConfig) -> int:
    """Size of the KV cache on all ranks, for layers that all keep keys and values of full attention."""
    model, parallel = config.model_config, config.parallel_config
    token_bytes = (
        2
        * model.get_num_layers(parallel)
        * model.get_num_kv_heads(parallel)
        * model.get_head_size()
        * model.dtype.itemsize
    )
    tokens = config.cache_config.num_gpu_blocks * config.cache_config.block_size
    return int(token_bytes * tokens * parallel.tensor_parallel_size)


def _truncates(sampling: Sampling) -> bool:
    return sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k is not None)


def _check_raw(sampling: Sampling, where: str) -> None:
    if sampling.temperature not in (0.0, 1.0):
        raise RequestRefused(
            f"{where} has temperature {sampling.temperature} beside generation.top_k or top_p, under which vLLM "
            "reports log-probabilities either before the temperature or after the cut, and neither is what the "
            "trainer recomputes: set temperature to 1, or top_p to 1.0 and top_k to null"
        )
