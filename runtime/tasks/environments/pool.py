"""EnvironmentPool: opens episodes in processes that can be killed."""

import asyncio
from typing import Any

from runtime.tasks.base import Chat, Completion, DataFailure, Verdict, VerdictFault
from runtime.tasks.environments.code import EnvironmentCode
from runtime.tasks.environments.host import EnvironmentLost, EpisodeHost, NotMade
from runtime.tasks.environments.interface import Answer, Episode
from runtime.tasks.verdicts.pool import SHOWN_BYTES

CHARACTERS_PER_TOKEN = 100
"""More than any token has, so that an answer with more characters than this a token cannot fit."""


class EnvironmentFault(DataFailure):
    """A call of an environment raised, missed its deadline, ended its process, or returned something wrong."""


class TurnTooLong(Exception):
    """The environment's answer cannot fit."""


class EnvironmentPool:
    """Keeps episodes in up to `processes` processes, started as they are needed. For use on one event loop."""

    def __init__(
        self, code: EnvironmentCode, processes: int, timeout_s: float, max_prompt_tokens: int, memory_mib: int = 4096
    ) -> None:
        self.code = code
        self.longest_answer = CHARACTERS_PER_TOKEN * max_prompt_tokens
        self._processes = processes
        self._timeout_s = timeout_s
        self._memory_mib = memory_mib
        self._hosts: list[EpisodeHost] = []
        self._starting = asyncio.Lock()
        self._printed = b""
        self._reported = False
        self._parts: tuple[str, ...] | None = None

    async def open(self, split: str, index: int) -> "HostedEpisode":
        """Begin an episode of an item. Raises EnvironmentFault and EnvironmentLost."""
        host = await self._host()
        number, reply = await host.open(split, index)
        where = f"{self.code.name}, item {index} of {split}"
        if isinstance(reply, VerdictFault):
            host.release(number)
            raise _fault(f"{where}:", "open", reply)
        prompt = reply["text"] if "text" in reply else Chat(tuple(reply["messages"]), tuple(reply["tools"]))
        return HostedEpisode(self, host, number, where, prompt)

    async def ask(self, name: str, *arguments: Any) -> dict[str, Any]:
        """The reply to a call about the environment as a whole. Raises EnvironmentFault and EnvironmentLost."""
        host = await self._host()
        await host.opened()
        reply = await host.call(name, *arguments)
        if isinstance(reply, VerdictFault):
            raise _fault(f"{self.code.name}:", name, reply)
        return reply

    def check_parts(self, verdict: Verdict) -> str | None:
        """Why a verdict does not go with those before: all have the same parts."""
        parts = tuple(sorted(verdict.parts))
        if self._parts is None:
            self._parts = parts
        return None if parts == self._parts else f"has the parts {list(parts)}, and those before {list(self._parts)}"

    def take_printed(self) -> str | None:
        """A sentence with the output of users' code, the first time it is not empty; otherwise None."""
        if self._reported or not self._printed:
            return None
        self._reported = True
        text = self._printed.decode("utf-8", "replace")
        return f"{self.code.name} prints: {text!r:.{SHOWN_BYTES}}; further output is read and dropped"

    async def close(self) -> None:
        """Kill all processes."""
        await asyncio.gather(*(host.close() for host in self._hosts))

    async def _host(self) -> EpisodeHost:
        """The process with the fewest episodes, or a new one while there are fewer than `processes`."""
        async with self._starting:
            able = [host for host in self._hosts if host.takes_more]
            if len(able) >= self._processes:
                return min(able, key=lambda host: host.load)
            self._hosts = [host for host in self._hosts if not host.is_gone]
            host = EpisodeHost(self.code, self._timeout_s, self._memory_mib, self._keep_printed)
            try:
                await host.start()
            except OSError as error:
                raise EnvironmentLost(f"{self.code.name}: no process could be started for it: {error}") from error
            self._hosts.append(host)
            return host

    def _keep_printed(self, part: bytes) -> None:
        self._printed += part[: SHOWN_BYTES - len(self._printed)]


def _fault(where: str, name: str, fault: VerdictFault) -> EnvironmentFault | EnvironmentLost:
    if fault.of_code:
        return EnvironmentFault(fault.happened)
    failed = "the environment" if isinstance(fault, NotMade) else name
    kind = EnvironmentLost if fault.infra else EnvironmentFault
    return kind(f"{where} {failed} {fault.happened}; {fault.remedy}")


class HostedEpisode(Episode):
    """An episode in a process. Its methods raise EnvironmentFault and EnvironmentLost."""

    def __init__(self, pool: EnvironmentPool, host: EpisodeHost, number: int, where: str, prompt: str | Chat) -> None:
        self.prompt = prompt
        self._pool, self._host, self._number, self._where = pool, host, number, where

    async def respond(self, turn: str) -> Answer:
        """Also raises TurnTooLong."""
        reply = await self._call("respond", f"to the turn {turn!r:.200}", turn, self._pool.longest_answer)
        if "too_long" in reply:
            raise TurnTooLong
        answer: Answer = reply["answer"]
        return answer

    async def verdict(self, completion: Completion) -> Verdict:
        about = f"of the completion {completion.text!r:.200}"
        reply = await self._call("verdict", about, completion)
        verdict = Verdict(reply["reward"], reply["correct"], reply["parts"])
        if wrong := self._pool.check_parts(verdict):
            raise EnvironmentFault(f"{self._said('verdict', about)} {wrong}; return the same parts each time")
        return verdict

    async def close(self) -> None:
        self._host.release(self._number)

    async def _call(self, name: str, about: str, *arguments: Any) -> dict[str, Any]:
        reply = await self._host.call(name, self._number, *arguments)
        if isinstance(reply, VerdictFault):
            kind = EnvironmentLost if reply.infra else EnvironmentFault
            raise kind(f"{self._said(name, about)} {reply.happened}; {reply.remedy}")
        return reply

    def _said(self, name: str, about: str) -> str:
        prompt = self.prompt if isinstance(self.prompt, str) else self.prompt.messages[-1].get("content")
        return f"{self._where} ({prompt!r:.200}): {name} {about}"
