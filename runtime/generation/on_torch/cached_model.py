"""A model and its key-value cache, with one sequence a row: reads prompts, and decodes one token a row.

The last token of a prompt is not read with the others but is the first input of decoding. So every sampled token, the
first included, comes from the same kind of forward pass.

Rows in use are always 0 to n − 1, so that a decoding step reads one slice without copying; the last row replaces a row
that ends. Position p of a sequence is column p of its row. Columns beyond a row's length are stale, and the attention
mask hides them. A layer takes its shape from the first keys, so the cache serves any model that uses transformers'
`Cache` interface with full attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass(slots=True)
class _Prefill:
    """The next forward pass reads prompts; prompt `source[i]` is written to row `first_row + i`."""

    first_row: int
    source: torch.Tensor


@dataclass(slots=True)
class _Decode:
    """The next forward pass adds one token to each of rows 0 to n − 1, row i at column `columns[i]` of `width`."""

    rows: torch.Tensor
    columns: torch.Tensor
    width: int


@dataclass(slots=True)
class _Shared:
    """The state that all layers of a cache share."""

    capacity_rows: int
    capacity_columns: int
    plan: _Prefill | _Decode | None


class RowLayer(CacheLayerMixin):
    """The keys and values of one attention layer, shape (rows, key-value heads, columns, head size) each."""

    def __init__(self, shared: _Shared):
        super().__init__()  # type: ignore[no-untyped-call]
        self.shared = shared

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate for the shape of these states, with zeros: under the mask 0 × stale must be 0, not NaN."""
        rows, columns = self.shared.capacity_rows, self.shared.capacity_columns
        self.keys = key_states.new_zeros(rows, key_states.shape[1], columns, key_states.shape[3])
        self.values = value_states.new_zeros(rows, value_states.shape[1], columns, value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new states as planned. Returns the keys and values that the queries attend to.

        The states have shape (n, key-value heads, new tokens, head size). A prefill attends to its own tokens only.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        plan = self.shared.plan
        if isinstance(plan, _Prefill):
            rows = slice(plan.first_row, plan.first_row + len(plan.source))
            columns = key_states.shape[2]
            self.keys[rows, :, :columns] = key_states[plan.source]
            self.values[rows, :, :columns] = value_states[plan.source]
            return key_states, value_states
        assert isinstance(plan, _Decode), "a forward pass needs a plan in `shared`"
        self.keys[plan.rows, :, plan.columns] = key_states[:, :, 0]
        self.values[plan.rows, :, plan.columns] = value_states[:, :, 0]
        n = len(plan.rows)
        return self.keys[:n, :, : plan.width], self.values[:n, :, : plan.width]

    def grow(self) -> None:
        """Move to the capacity in `shared`, keeping the contents."""
        if not self.is_initialized:
            return
        assert self.keys is not None
        assert self.values is not None
        old_keys, old_values = self.keys, self.values
        self.lazy_initialization(old_keys, old_values)
        rows, _, columns, _ = old_keys.shape
        self.keys[:rows, :, :columns] = old_keys
        self.values[:rows, :, :columns] = old_values

    def reset(self) -> None:
        """Free the memory, so that no stale value is left, not even a NaN."""
        self.keys = self.values = None
        self.is_initialized = False

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        raise NotImplementedError("RowCache: pass a four-dimensional attention_mask to the model")

    def get_seq_length(self) -> int:
        raise NotImplementedError("RowCache: pass position_ids to the model")

    def get_max_length(self) -> int:
        return -1  # no maximum


class RowCache(Cache):
    """All layers of a model, and the plan of the next forward pass."""

    def __init__(self, num_layers: int, max_rows: int):
        self.max_rows = max_rows
        self.shared = _Shared(capacity_rows=0, capacity_columns=0, plan=None)
        self.row_layers = [RowLayer(self.shared) for _ in range(num_layers)]
        super().__init__(layers=list(self.row_layers))

    def reserve(self, rows: int, columns: int) -> None:
        """Make room for this many rows, at most `max_rows`, and columns. Rows double, as few are added at a time."""
        shared = self.shared
        if rows <= shared.capacity_rows and columns <= shared.capacity_columns:
            return
        if rows > shared.capacity_rows:
            shared.capacity_rows = min(self.max_rows, max(rows, 2 * shared.capacity_rows))
        shared.capacity_columns = max(columns, shared.capacity_columns)
        for layer in self.row_layers:
            layer.grow()

    def reset(self) -> None:
        for layer in self.row_layers:
            layer.reset()

    def move(self, source: list[int], target: list[int], columns: int) -> None:
        """Copy the first `columns` of rows `source` over rows `target`. No row is in both."""
        if not source:
            return
        for layer in self.row_layers:
            if layer.keys is not None and layer.values is not None:
                layer.keys[target, :, :columns] = layer.keys[source, :, :columns]
                layer.values[target, :, :columns] = layer.values[source, :, :columns]


class CachedModel:
    """Forward passes of `model` over up to `max_rows` sequences, numbered as the cache's rows."""

    def __init__(self, model: PreTrainedModel, max_rows: int):
        self.model = model.eval().requires_grad_(False)
        self.cache = RowCache(model.config.get_text_config().num_hidden_layers, max_rows)
        parameter = next(model.parameters())
        self.device = parameter.device
        self._dtype = parameter.dtype

    def prefill(self, prompts: Sequence[npt.NDArray[np.int32]], copies: Sequence[int], first_row: int) -> None:
        """Read all but the last token of each prompt once, into `copies` reserved rows each, from `first_row` on."""
        width = max(len(prompt) for prompt in prompts) - 1
        if width == 0:
            return
        # Prompts are padded on the right with token 0. Under a causal mask no token of a prompt sees its padding,
        # and decoding overwrites or masks the padding's cache entries.
        ids = np.zeros((len(prompts), width), dtype=np.int64)
        for line, prompt in zip(ids, prompts, strict=True):
            line[: len(prompt) - 1] = prompt[:-1]
        source = torch.repeat_interleave(torch.arange(len(prompts)), torch.tensor(copies))
        self.cache.shared.plan = _Prefill(first_row, source.to(self.device))
        positions = torch.arange(width, device=self.device)
        visible = positions[None, :] <= positions[:, None]
        self._forward(torch.from_numpy(ids), positions[None, :].expand(len(prompts), -1), visible[None, None])

    def decode(self, tokens: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
        """Read one more token for each of the first n rows, of which row i has `lengths[i]` in the cache.

        Returns the logits of the next token, (n, vocabulary), in the model's type.
        """
        columns = torch.tensor(lengths, device=self.device)
        width = max(lengths) + 1
        self.cache.shared.plan = _Decode(torch.arange(len(columns), device=self.device), columns, width)
        visible = torch.arange(width, device=self.device)[None, :] <= columns[:, None]
        return self._forward(torch.tensor(tokens)[:, None], columns[:, None], visible[:, None, None])

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """Logits after the last column of `ids`, shape (n, vocabulary).

        ids, positions: (n, t). visible: which of the keys (width) each query may see, (n or 1, 1, t, width).
        """
        # transformers passes an additive mask of four dimensions to the attention unchanged.
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
