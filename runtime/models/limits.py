"""What a model's configuration says of the longest sequence that it takes."""

from __future__ import annotations

from transformers import PretrainedConfig


def max_positions(config: PretrainedConfig) -> tuple[str, int] | None:
    """The key in config.json that limits the positions, and the limit; None where nothing does."""
    text = config.get_text_config()
    name = text.attribute_map.get("max_position_embeddings", "max_position_embeddings")
    positions = vars(text).get(name)
    return (name, positions) if isinstance(positions, int) else None
