"""vLLM's arguments and environment, and which log-probabilities it can report.

Functions import vLLM themselves: that takes seconds, and only runs that name vLLM need it installed.
"""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from runtime.generation.config import GenerationConfig, Sampling, VllmEngineConfig
from runtime.generation.engine import GroupRequest, RequestRefused

if TYPE_CHECKING:
    from vllm import AsyncEngineArgs, SamplingParams

LogprobsMode = Literal["processed_logprobs", "raw_logprobs"]
_CPU_KV_CACHE_BYTES = 512 * 1024**2
_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # other actors use the cores too
}


class VllmMissing(RuntimeError):
    """vLLM is not installed in this environment."""

    def __init__(self) -> None:
        super().__init__(
            "generation.engine.name is vllm, and vLLM is not installed in this environment; for GPUs, in your "
            "clone on every node: pip install -e '.[train,vllm]'; "
            "for a CPU: scripts/setup_vllm_cpu.sh makes .venv-vllm, which has it"
        )


def check_vllm_installed() -> None:
    """Raise VllmMissing if vLLM is not installed. Does not import it, which takes seconds."""
    if find_spec("vllm") is None:
        raise VllmMissing


def logprobs_mode(config: GenerationConfig) -> LogprobsMode:
    """Which of the log-probabilities that vLLM can report are those of GeneratedSequence.

    vLLM processes logits by temperature, then by top_k and top_p, which renormalise. Without top_k and top_p the
    processed log-probabilities are right. With them the raw ones are, if the temperature is 1. Greedy decoding uses
    neither in vLLM. Raises RequestRefused for top_k or top_p at another temperature.
    """
    if not _truncates(config.sampling()):
        return "processed_logprobs"
    _check_raw(config.sampling(), "generation")
    return "raw_logprobs"


def check_measurable(request: GroupRequest, mode: LogprobsMode) -> None:
    """Raise RequestRefused for a request of training whose log-probabilities this mode reports wrongly."""
    sampling = request.sampling
    if sampling.purpose == "evaluation":
        return
    if mode == "raw_logprobs":
        _check_raw(sampling, f"request {request.request_id!r}")
    elif _truncates(sampling):
        raise RequestRefused(
            f"request {request.request_id!r} has top_k {sampling.top_k} and top_p {sampling.top_p}, but generation has "
            "neither, and vLLM was started to report log-probabilities accordingly: set generation.top_k or top_p too"
        )


def sampling_params(request: GroupRequest, stop_token_ids: Sequence[int]) -> "SamplingParams":
    """vLLM's form of a request. Greedy siblings are equal, so it asks for one of them."""
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
        ignore_eos=True,  # stop_token_ids has all tokens that end a completion
        logprobs=0,  # of the sampled tokens alone
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def engine_args(model_directory: Path, config: GenerationConfig, engine: VllmEngineConfig) -> "AsyncEngineArgs":
    """The arguments of AsyncLLM."""
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
        # On a CPU vLLM 0.32 dies if it splits the prompt of a request with a seed: it rewinds the generator, which
        # torch's CPU generator cannot do. So a CPU reads every prompt whole.
        enable_chunked_prefill=not on_cpu,
        enforce_eager=engine.enforce_eager,
        logprobs_mode=logprobs_mode(config),
        enable_prefix_caching=True,  # siblings share their prompt
        skip_tokenizer_init=True,
        generation_config="vllm",  # no sampling defaults from the model directory
        load_format="safetensors",
        use_tqdm_on_load=False,
        enable_log_requests=False,
        disable_log_stats=True,
    )


def set_environment(engine: VllmEngineConfig) -> None:
    """Set the environment that vLLM's processes inherit. Call it before vLLM is imported.

    Overrides the number of threads, which Ray may have set, and no other variable that is set already.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ["OMP_NUM_THREADS"] = str(engine.threads)


def _truncates(sampling: Sampling) -> bool:
    return sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k is not None)


def _check_raw(sampling: Sampling, where: str) -> None:
    if sampling.temperature not in (0.0, 1.0):
        raise RequestRefused(
            f"{where} has temperature {sampling.temperature} with generation.top_k or top_p, under which vLLM "
            "reports log-probabilities either before the temperature or after the cut, and the trainer recomputes "
            "neither: set temperature to 1, or top_p to 1.0 and top_k to null"
        )
