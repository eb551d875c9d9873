"""Where the data of each ready or selected group is.

Consumes: rows of finished groups; ClearRows.
Waits for: nothing.
Unblocked by: nothing.
Produces: deletions in the data plane. Trained rows go with the next chunk to the trainer, which deletes them as it
reads: a separate call once a step would be a tenth of what control costs.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from fsm.effects import ClearRows
from runtime.transport.answers import Row
from runtime.transport.data_plane import DataPlane


class Rows:
    """Rows by prompt, from the moment a group finishes until it is cleared."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._rows: dict[int, Row] = {}
        self._trained: list[Row] = []
        """To be deleted with the next chunk: one step's at most."""
        self._held: list[Row] | None = None
        """To be deleted once a checkpoint has copied them; None while none is being copied."""

    def __len__(self) -> int:
        return len(self._rows)

    def keep(self, prompt: int, row: Row) -> Row | None:
        """Remember a finished group's row. Returns the row of an earlier attempt of the prompt, if there was one."""
        before = self._rows.get(prompt)
        self._rows[prompt] = row
        return before

    def take_back(self, prompt: int, before: Row | None) -> None:
        """Undo `keep` for a group that came too late: delete its row, and remember the earlier one again.

        An answer that comes twice has the row of the group that was taken, which stays.
        """
        if self._rows[prompt] == before:
            return
        self.clear([prompt])
        if before is not None:
            self._rows[prompt] = before

    def of(self, prompts: Iterable[int]) -> list[tuple[int, Row]]:
        """Prompts and their rows, in order. KeyError for a prompt without data."""
        return [(prompt, self._rows[prompt]) for prompt in prompts]

    def clear(self, prompts: Iterable[int]) -> None:
        """Delete the rows of prompts that have one."""
        gone = self._pop(prompts)
        if self._held is not None:
            self._held += gone
        elif gone:
            self._plane.delete(gone)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delete nothing in the data plane until the block ends: a checkpoint is being copied."""
        held: list[Row] = []
        self._held = held
        try:
            yield
        finally:
            self._held = None
            if held:
                self._plane.delete(held)

    def clear_rows(self, clear: ClearRows) -> None:
        """Delete rows that nobody needs any more: those of a trained step with the next chunk, others now."""
        if clear.why == "trained":
            self._trained += self._pop(clear.prompts)
        else:
            self.clear(clear.prompts)

    def take_trained(self) -> list[Row]:
        """Rows of trained groups; the caller must have them deleted."""
        taken, self._trained = self._trained, []
        return taken

    def _pop(self, prompts: Iterable[int]) -> list[Row]:
        return [self._rows.pop(prompt) for prompt in prompts if prompt in self._rows]
