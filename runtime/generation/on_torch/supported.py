"""Which models the torch engine computes rightly."""

from __future__ import annotations

from transformers import PreTrainedModel

from runtime.models.errors import UnsupportedModel
from runtime.models.limits import max_positions


def check_supported(model: PreTrainedModel, tokens: int) -> None:
    """Raises UnsupportedModel for what the cache or the positions cannot serve at sequences of this many tokens."""
    text = model.config.get_text_config()
    name = type(model).__name__
    settings = text.to_dict()
    window = settings.get("sliding_window")
    kinds = set(settings.get("layer_types") or ["full_attention" if window is None else "sliding_attention"])
    if "local" in settings.get("attention_layers", ()):  # GPT-Neo's words
        window, kinds = settings["window_size"], {"sliding_attention"}
    if kinds - {"full_attention", "sliding_attention"}:
        raise UnsupportedModel(
            f"{name} has layers of {sorted(kinds)}; the torch engine keeps keys and values of full attention only: "
            "use generation.engine.name: vllm"
        )
    if "sliding_attention" in kinds and window is not None and tokens > window:
        raise UnsupportedModel(
            f"{name} attends to a window of {window} tokens and generation.max_prompt_tokens + max_new_tokens is "
            f"{tokens}; lower them to {window}, or use generation.engine.name: vllm"
        )
    limit = max_positions(model.config)
    if limit is not None and tokens > limit[1]:
        positions = limit[1]
        raise UnsupportedModel(
            f"{name} has {positions} positions and generation.max_prompt_tokens + max_new_tokens is {tokens}; "
            f"lower them to {positions} together"
        )
