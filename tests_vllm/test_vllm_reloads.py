"""A model that vLLM would compute wrongly after a sync is refused when the engine starts."""

import asyncio
from pathlib import Path

import pytest

from runtime.generation.config import GenerationConfig, VllmEngineConfig
from runtime.generation.on_vllm.engine import VllmEngine
from runtime.models.directory import UnsupportedModel
from tests.runtime.models.architectures import save


def test_experts_that_vllm_reloads_wrongly_on_a_cpu_are_refused(tmp_path: Path) -> None:
    """Should vLLM learn to reload them, its samples are to be compared here as in test_vllm_engine."""
    model = save(
        "qwen3_moe",
        tmp_path,
        head_dim=32,
        hidden_size=64,
        intermediate_size=64,
        moe_intermediate_size=32,
        num_attention_heads=2,
    )
    engine = VllmEngineConfig(precision="float32", enforce_eager=True, max_batch_sequences=16)
    config = GenerationConfig.model_validate({"engine": engine, "max_new_tokens": 16, "max_prompt_tokens": 32})

    async def start() -> None:
        async with VllmEngine(model, config, stop_token_ids=[1]):
            pass

    with pytest.raises(UnsupportedModel, match=r"something else after reloading the weights of Qwen3MoeForCausalLM"):
        asyncio.run(start())
