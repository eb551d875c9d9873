"""The blocks `policy.tiny` and `warmup`. Imports no torch, since the controller reads them too."""

from typing import Self

from pydantic import Field, model_validator

from fsm.config.strict import Strict


class TinyModelConfig(Strict):
    """The size of the tiny model."""

    num_layers: int = Field(default=2, ge=1, description="Transformer layers.")
    width: int = Field(default=64, ge=8, description="Width of the residual stream.")
    head_size: int = Field(default=32, ge=4, description="Width of an attention head; width is a multiple of it.")
    max_positions: int = Field(default=128, ge=8, description="Longest sequence, in tokens.")
    init_std: float = Field(default=0.05, gt=0, description="Standard deviation of the initial weights.")

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        """A `width` that is not a multiple of `head_size`."""
        if self.width % self.head_size:
            raise ValueError(f"width {self.width} is not a multiple of head_size {self.head_size}: change either")
        return self


class WarmupConfig(Strict):
    """How long and how fast the supervised warm-up is."""

    steps: int = Field(default=64, ge=0, description="Steps of supervised training; 0: no warm-up.")
    batch_size: int = Field(default=128, ge=1, description="Prompts of a warm-up step.")
    learning_rate: float = Field(default=1e-3, gt=0, description="AdamW's learning rate.")
