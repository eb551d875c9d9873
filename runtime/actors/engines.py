"""The engine that `generation.engine` names, running."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from runtime.generation.config import GenerationConfig, TorchEngineConfig
from runtime.generation.engine import Engine


def open_engine(
    model_directory: Path, config: GenerationConfig, stop_token_ids: Sequence[int]
) -> AbstractAsyncContextManager[Engine]:
    """An engine that runs while its context is entered. An engine's packages are imported when it is asked for."""
    if isinstance(config.engine, TorchEngineConfig):
        from runtime.generation.on_torch.engine import load_torch_engine
        from runtime.generation.on_torch.loop import EngineLoop

        return EngineLoop(load_torch_engine(model_directory, config, stop_token_ids=stop_token_ids))
    from runtime.generation.on_vllm.engine import VllmEngine

    return VllmEngine(model_directory, config, stop_token_ids=stop_token_ids)
