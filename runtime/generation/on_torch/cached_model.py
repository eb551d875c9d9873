"""A model and its cache: reading prompts and decoding one token a row, as tensors. The engine does the rest.

The last token of a prompt is not read with the rest: it is the first input of decoding. So every sampled token,
the first included, comes out of the same kind of forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from runtime.generation.on_torch.kv_cache import RowCache


class CachedModel:
    """Forward passes of `model` over up to `max_rows` sequences, numbered as the cache's rows."""

    def __init__(self, model: PreTrainedModel, max_rows: int):
        self.model = model.eval().requires_grad_(False)
        self.cache = RowCache(model.config.get_text_config().num_hidden_layers, max_rows)
        parameter = next(model.parameters())
        self.device = parameter.device
        self._dtype = parameter.dtype

    def prefill(self, prompts: Sequence[npt.NDArray[np.int32]], copies: Sequence[int], first_row: int) -> None:
        """Read all but the last token of each prompt, once, into `copies` rows each, from `first_row` on.

        The cache must have room for them (`RowCache.reserve`).
        """
        width = max(len(prompt) for prompt in prompts) - 1
        if width == 0:
            return
        # Prompts are padded on the right with token 0. Under a causal mask no token of a prompt sees its padding,
        # and decoding overwrites what the padding left in the cache, or masks it.
        ids = np.zeros((len(prompts), width), dtype=np.int64)
        for line, prompt in zip(ids, prompts, strict=True):
            line[: len(prompt) - 1] = prompt[:-1]
        source = torch.repeat_interleave(torch.arange(len(prompts)), torch.tensor(copies))
        self.cache.begin_prefill(first_row, source.to(self.device))
        positions = torch.arange(width, device=self.device)
        visible = positions[None, :] <= positions[:, None]
        self._forward(torch.from_numpy(ids), positions[None, :].expand(len(prompts), -1), visible[None, None])

    def decode(self, tokens: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
        """Read one more token for each of the first n rows; row i has `lengths[i]` in the cache before.

        Returns the logits of what comes next, (n, vocabulary), in the model's type.
        """
        columns = torch.tensor(lengths, device=self.device)
        width = max(lengths) + 1
        self.cache.begin_decode(columns, width)
        visible = torch.arange(width, device=self.device)[None, :] <= columns[:, None]
        return self._forward(torch.tensor(tokens)[:, None], columns[:, None], visible[:, None, None])

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """Logits after the last column of `ids`, shape (n, vocabulary).

        ids, positions: (n, t). visible: which of the keys (width) each query may see, (n or 1, 1, t, width).
        """
        # Additive, and in four dimensions: transformers hands such a mask to the attention as it is.
        mask = torch.zeros(visible.shape, dtype=self._dtype, device=self.device)
        mask.masked_fill_(~visible, torch.finfo(self._dtype).min)
        logits: torch.Tensor = self.model(
            input_ids=ids.to(self.device),
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        return logits[:, -1]
