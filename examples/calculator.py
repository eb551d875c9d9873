"""A calculator that a tiny model learns to call: products that it cannot do alone.

The policy reads `374*485>`. It may answer at once (`181390`), or call the calculator (`calc(374*485)`), read the result
(`=181390>`), and answer then. The reward is 1 for the right product in its last turn, whichever way it took.
"""

import random
import re
from collections.abc import Sequence
from typing import Literal

from runtime.tasks.base import Completion, Verdict
from runtime.tasks.environments.interface import Environment, Episode
from runtime.tasks.split import derive_seed, is_held_out

HELD_OUT = 0.1
_CALL = re.compile(r"calc\((\d{1,6})\*(\d{1,6})\)")


class Calculator(Environment):
    """Products of two numbers of three digits. A tenth of them is held out, whatever the seed."""

    def __init__(self, *, split: Literal["training", "validation"], seed: int, calls_shown: float = 0.1) -> None:
        """calls_shown: share of the warm-up's demonstrations that call the calculator; the others answer at once."""
        self._split, self._seed, self._calls_shown = split, seed, calls_shown

    def numbers(self, index: int) -> tuple[int, int]:
        """The numbers of item `index`: the first ones drawn for it that belong to this split."""
        drawn = random.Random(derive_seed(self._seed, self._split, index))
        while True:
            a, b = drawn.randint(100, 999), drawn.randint(100, 999)
            if is_held_out(f"{a}*{b}", HELD_OUT) == (self._split == "validation"):
                return a, b

    async def open(self, index: int) -> Episode:
        """An episode about two numbers."""
        return Product(*self.numbers(index))

    def demonstration(self, index: int) -> Sequence[str]:
        """With the calculator in few of them, so that the policy has seen it, but has to find out that it pays."""
        a, b = self.numbers(index)
        if random.Random(derive_seed(self._seed, "shown", index)).random() < self._calls_shown:
            return f"{a}*{b}>", f"calc({a}*{b})", f"={a * b}>", f"{a * b}"
        return f"{a}*{b}>", f"{a * b}"


class Product(Episode):
    """One rollout."""

    def __init__(self, a: int, b: int) -> None:
        self.prompt = f"{a}*{b}>"
        self._product = a * b
        self._called = False

    async def respond(self, turn: str) -> str | None:
        """The calculator's result; anything but a call is the policy's answer."""
        call = _CALL.fullmatch(turn)
        if call is None or self._called:
            return None
        self._called = True
        return f"={int(call[1]) * int(call[2])}>"

    async def verdict(self, completion: Completion) -> Verdict:
        """Whether the last turn is the product."""
        correct = completion.text == str(self._product)
        return Verdict(float(correct), correct, {"called": float(self._called)})
