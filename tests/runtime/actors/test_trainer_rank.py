"""What a trainer rank makes of the rows of a chunk."""

import asyncio
from itertools import permutations
from typing import Any

from fsm.events import ClaimUnreadable
from runtime.actors.trainer_rank import read_share
from runtime.training.ranks import alone
from tests.runtime.bookkeeping import group_of
from tests.runtime.control.fake_actors import KeepingPlane


class WithGap(KeepingPlane):
    """One row of it cannot be read."""

    gap = -1

    def get(self, rows: Any, unneeded: Any = ()) -> list[Any]:
        return ["it is gone" if row == self.gap else self.groups[row] for row in rows]


def test_groups_of_a_chunk_are_trained_in_order_of_their_prompts_however_they_were_selected() -> None:
    """A retry is dispatched, and so selected, last; a sum of floats depends on its order."""
    plane = WithGap()
    prompts = [3, 1, 4, 7]
    rows = list(zip(prompts, asyncio.run(plane.put([group_of(prompt) for prompt in prompts])), strict=True))
    for selected in permutations(rows):
        share, unreadable = read_share(plane, selected, (), alone())
        assert ([group.prompt for group in share], unreadable) == ([1, 3, 4, 7], ())
    plane.gap = dict(rows)[4]
    share, unreadable = read_share(plane, rows, (), alone())
    assert [group.prompt for group in share] == [1, 3, 7]
    assert unreadable == (ClaimUnreadable(4, "prompt 4: it is gone"),)
