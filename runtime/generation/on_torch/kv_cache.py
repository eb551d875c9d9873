"""A key-value cache of rows: one sequence a row, each as long as it is, added and removed between steps.

Rows in use are always 0 to n − 1, so that a decoding step reads one slice and copies nothing: a row that ends is
filled by the last one. Within a row tokens are left-aligned: position p of the sequence is column p. What lies
behind a row's length is stale, and the attention mask hides it.

A layer learns its shape from the first keys it is given, so this serves any model that goes through transformers'
`Cache` interface with full attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass(slots=True)
class _Prefill:
    """The next forward pass reads prompts; prompt `source[i]` is written to row `first_row + i`."""

    first_row: int
    source: torch.Tensor


@dataclass(slots=True)
class _Decode:
    """The next forward pass adds one token to each of rows 0 to n − 1, row i at column `columns[i]`."""

    rows: torch.Tensor
    columns: torch.Tensor
    width: int


@dataclass(slots=True)
class _Shared:
    """What all layers of a cache have in common."""

    capacity_rows: int
    capacity_columns: int
    plan: _Prefill | _Decode | None


class RowLayer(CacheLayerMixin):
    """The keys and values of one attention layer, shape (rows, key-value heads, columns, head size) each."""

    def __init__(self, shared: _Shared):
        super().__init__()  # type: ignore[no-untyped-call]
        self.shared = shared

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate for the shape of these states. Zeros, since 0 × stale must be 0 and not NaN under the mask."""
        rows, columns = self.shared.capacity_rows, self.shared.capacity_columns
        self.keys = key_states.new_zeros(rows, key_states.shape[1], columns, key_states.shape[3])
        self.values = value_states.new_zeros(rows, value_states.shape[1], columns, value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new states as planned; returns the keys and values that the queries attend to.

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
        assert isinstance(plan, _Decode), "a forward pass needs a plan: begin_prefill or begin_decode"
        self.keys[plan.rows, :, plan.columns] = key_states[:, :, 0]
        self.values[plan.rows, :, plan.columns] = value_states[:, :, 0]
        n = len(plan.rows)
        return self.keys[:n, :, : plan.width], self.values[:n, :, : plan.width]

    def grow(self) -> None:
        """Move to the capacity in `shared`, keeping what is there."""
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
        """Give the memory back; what comes next allocates anew. Nothing stale is left, not even a NaN."""
        self.keys = self.values = None
        self.is_initialized = False

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Not asked for: the engine gives the whole mask."""
        raise NotImplementedError("RowCache: pass a four-dimensional attention_mask to the model")

    def get_seq_length(self) -> int:
        """Not asked for: every row has a length of its own."""
        raise NotImplementedError("RowCache: pass position_ids to the model")

    def get_max_length(self) -> int:
        """No maximum: it grows."""
        return -1


class RowCache(Cache):
    """All layers of a model, and the plan of the forward pass that comes next."""

    def __init__(self, num_layers: int, max_rows: int):
        self.max_rows = max_rows
        self.shared = _Shared(capacity_rows=0, capacity_columns=0, plan=None)
        self.row_layers = [RowLayer(self.shared) for _ in range(num_layers)]
        super().__init__(layers=list(self.row_layers))

    @property
    def bytes(self) -> int:
        """Memory allocated. It grows to the most that was ever in use and stays there."""
        return sum(
            tensor.numel() * tensor.element_size()
            for layer in self.row_layers
            for tensor in (layer.keys, layer.values)
            if tensor is not None
        )

    def reserve(self, rows: int, columns: int) -> None:
        """Make room for this many rows, at most `max_rows`, and columns. Rows double: they come a few at a time."""
        shared = self.shared
        if rows <= shared.capacity_rows and columns <= shared.capacity_columns:
            return
        if rows > shared.capacity_rows:
            shared.capacity_rows = min(self.max_rows, max(rows, 2 * shared.capacity_rows))
        shared.capacity_columns = max(columns, shared.capacity_columns)
        for layer in self.row_layers:
            layer.grow()

    def reset(self) -> None:
        """Forget everything."""
        for layer in self.row_layers:
            layer.reset()

    def begin_prefill(self, first_row: int, source: torch.Tensor) -> None:
        """The next forward pass reads prompts into new rows: prompt `source[i]` into row `first_row + i`."""
        self.shared.plan = _Prefill(first_row, source)

    def begin_decode(self, columns: torch.Tensor, width: int) -> None:
        """The next forward pass writes one token a row at `columns` (n,) and attends to the first `width`."""
        self.shared.plan = _Decode(torch.arange(len(columns), device=columns.device), columns, width)

    def move(self, source: list[int], target: list[int], columns: int) -> None:
        """Copy the first `columns` of rows `source` over rows `target`. No row is in both."""
        if not source:
            return
        for layer in self.row_layers:
            if layer.keys is not None and layer.values is not None:
                layer.keys[target, :, :columns] = layer.keys[source, :, :columns]
                layer.values[target, :, :columns] = layer.values[source, :, :columns]
