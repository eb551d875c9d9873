"""Environments that do what the policy says, and hardly ever anything good."""

import asyncio
import ctypes
import json
import os
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from runtime.tasks.base import Chat, Completion, Verdict
from runtime.tasks.environments.interface import Answer, Environment, Episode

FOR_EVER_S = 1e6
PRINTED = 10_000_000


def raise_(error: BaseException) -> None:
    raise error


DEEDS: dict[str, Callable[[], Any]] = {
    "blocks": lambda: time.sleep(FOR_EVER_S),
    "naps": lambda: time.sleep(1.0) or "woke",
    "exits": lambda: os._exit(3),
    "is-killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfaults": lambda: ctypes.string_at(0),
    "regex": lambda: re.match(r"(a+)+$", "a" * 60 + "b"),
    "raises": lambda: raise_(ValueError("no such tool")),
    "sys.exit": lambda: raise_(SystemExit("bye")),
    "prints": lambda: print("x" * PRINTED) or "printed",
    "says-much": lambda: "y" * 5_000_000,
    "says-many": lambda: [{"role": "user", "content": "y" * 5_000_000}],
    "number": lambda: 7,
    "not-json": lambda: [{"role": "user", "content": {1, 2}}],
    "no-role": lambda: [{"content": "a"}],
    "messages": lambda: [{"role": "tool", "content": "42"}],
    "ends": lambda: None,
    "replaces-json": lambda: setattr(json, "dumps", lambda value, **options: b"") or "replaced",
    "asks-for-memory": lambda: bytearray(1 << 40),
    "eats-memory": lambda: (b"x" * 600_000_000, time.sleep(FOR_EVER_S)),
    "where": lambda: f"{os.getpid()} {threading.get_ident()}",
}


VERDICTS: dict[str, Verdict] = {
    "nan": Verdict(float("nan"), False),
    "infinite": Verdict(float("inf"), False),
    "huge": Verdict(1e300, False),
    "text": Verdict("2.5", True),  # type: ignore[arg-type]
    "half-correct": Verdict(1.0, 0.5),  # type: ignore[arg-type]
    "no": Verdict(1.0, "no"),  # type: ignore[arg-type]
    "part-text": Verdict(1.0, True, {"a": "1e3"}),  # type: ignore[dict-item]
    "part-nan": Verdict(1.0, True, {"a": float("nan")}),
    "part-unnamed": Verdict(1.0, True, {1: 1.0}),  # type: ignore[dict-item]
    "part-list": Verdict(1.0, True, [1.0]),  # type: ignore[arg-type]
    "part-many": Verdict(1.0, True, {str(number): 1.0 for number in range(65)}),
    "part-reward": Verdict(-4.0, False, {"reward": 4.0, "correct": 0.5}),
}


class Doing(Episode):
    """Remembers its turns, in a database that only its own thread may use."""

    def __init__(self, prompt: str, closed: Path | None) -> None:
        self.prompt: str | Chat = prompt
        self._closed = closed
        self._turns = sqlite3.connect(":memory:")
        self._turns.execute("create table turns (text)")

    async def respond(self, turn: str) -> Answer:
        self._turns.execute("insert into turns values (?)", (turn,))
        if turn == "waits":
            await asyncio.sleep(FOR_EVER_S)
        if turn in DEEDS:
            answer: Answer = DEEDS[turn]()
            return answer
        return f"{turn} again"

    async def verdict(self, completion: Completion) -> Verdict:
        if completion.text in VERDICTS:
            return VERDICTS[completion.text]
        match completion.text:
            case "surrogate":
                return Verdict(0.0, False, {"a\ud800": 1.0})
            case "parts":
                return Verdict(1.0, True, {"other": 1.0})
            case "float":
                return 1.0  # type: ignore[return-value]
        ((turns,),) = self._turns.execute("select count(*) from turns")
        return Verdict(-float(turns), correct=turns == 2)

    async def close(self) -> None:
        self._turns.close()
        if self._closed is not None:
            with self._closed.open("a") as file:
                file.write("closed\n")


class Deeds(Environment):
    """The prompt of an item is its number."""

    def __init__(
        self,
        *,
        split: Literal["training", "validation"],
        seed: int,
        items: int | None = None,
        opening: str | None = None,
        closed: str | None = None,
        made: str | None = None,
    ) -> None:
        self.num_items = items
        self._opening, self._closed = opening, None if closed is None else Path(closed)
        if made is not None:
            DEEDS[made]()
        self._split, self._seed = split, seed

    async def open(self, index: int) -> Episode:
        if self._opening is not None:
            DEEDS[self._opening]()
        return Doing(f"{self._split} {self._seed} {index}", self._closed)


class Plain(Environment):
    """Has a method that is no coroutine function, or an episode without a prompt."""

    def __init__(self, *, split: Literal["training", "validation"], seed: int, plain: str) -> None:
        if plain == "open":
            self.open = lambda index: Doing("a", None)  # type: ignore[assignment,method-assign,return-value]
        self._plain = plain

    async def open(self, index: int) -> Episode:
        episode = Doing("a", None)
        match self._plain:
            case "respond":
                episode.respond = lambda turn: "b"  # type: ignore[assignment,method-assign,return-value]
            case "verdict":
                episode.verdict = lambda said: Verdict(1.0, True)  # type: ignore[assignment,method-assign,return-value]
            case "prompt":
                del episode.prompt
        return episode


class Unmade(Environment):
    """Has no constructor, so that it is abstract."""

    async def open(self, index: int) -> Episode:
        raise AssertionError


class Asking(Environment):
    """Asks twice more with a text of its own, and pays for short answers."""

    def __init__(self, *, split: Literal["training", "validation"], seed: int) -> None:
        self._split = split

    async def open(self, index: int) -> Episode:
        return Asked(f"{index:03}>")


class Asked(Episode):
    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
        self._turns = 0

    async def respond(self, turn: str) -> Answer:
        self._turns += 1
        return "#####?" if self._turns < 3 else None

    async def verdict(self, completion: Completion) -> Verdict:
        return Verdict(-float(completion.tokens), False, {"turns": float(len(completion.turns))})


class Sometimes(Environment):
    """Misbehaves in some items: a deed of DEEDS in the second call of an episode."""

    def __init__(self, *, split: Literal["training", "validation"], seed: int, deeds: dict[str, str]) -> None:
        self._split = split
        self._deeds = deeds

    async def open(self, index: int) -> Episode:
        return Once(f"{index:03}>", self._deeds.get(f"{self._split} {index}"))


class Once(Asked):
    def __init__(self, prompt: str, deed: str | None) -> None:
        super().__init__(prompt)
        self._deed = deed

    async def verdict(self, completion: Completion) -> Verdict:
        if self._deed is not None:
            DEEDS[self._deed]()
        return await super().verdict(completion)
