"""The program of an environment process. It imports the standard library alone, and ends when its parent does.

Each episode has a thread with an event loop, so that none waits for another. Calls come as pickle, (name, arguments…);
replies go as JSON. The number of an episode is that of the call that opened it.
"""

import asyncio
import os
import queue
import socket
import threading
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, NoReturn

from runtime.tasks.base import Chat, Completion, NoReward, TaskError, Verdict
from runtime.tasks.environments.code import EnvironmentCode
from runtime.tasks.environments.interface import Environment, Episode
from runtime.tasks.judges import LARGEST, NAMES_MAX, as_name, as_reward, shown
from runtime.tasks.verdicts.memory import refuse_more_than
from runtime.tasks.verdicts.process import Sender, blame, prepare_process, raised
from runtime.tasks.verdicts.wire import pack_message, receive_case

Reply = dict[str, Any]
_exit = os._exit
"""The original, which leaves no clue."""
_EPISODES = 256
"""So many threads' stacks are left out of the memory limit."""
_LAST = ("close", "count", "demonstrate")
"""Calls after which a thread ends."""


class _Wrong(Exception):
    """Users' code returned something else than it should: what, and what to return."""

    def __init__(self, happened: str, remedy: str):
        self.reply = {"happened": happened, "remedy": remedy, "infra": False}
        super().__init__(happened)


def main(connection_fd: int, clues_fd: int, parent: int, memory_mib: int) -> NoReturn:
    """Open the environment, whose code is sent first, then serve the calls that follow."""
    prepare_process(clues_fd, parent)
    refuse_more_than(memory_mib, _EPISODES)
    _EpisodeServer(socket.socket(fileno=connection_fd)).serve()


class _EpisodeServer(Sender):
    """Hands calls to the threads of episodes."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._environments: dict[str, Environment]

    def serve(self) -> NoReturn:
        """Run in the main thread, which makes the environment."""
        code: EnvironmentCode
        _, (code,) = receive_case(self._connection)
        threading.Thread(target=self._beat, daemon=True).start()
        try:
            self._send({"opening": threading.get_ident()})
            self._environments = code.open()
            self._send({"opened": True})
        except BaseException as error:
            known = isinstance(error, TaskError)
            remedy = "correct it there, or data.task.options"
            why = str(error) if known else f"{code.name}: while it was made, it {raised(error)}; {remedy}"
            self._send({"refused": why})
            _exit(1)
        threading.Thread(target=self._receive, daemon=True).start()
        while True:
            try:
                threading.Event().wait()
            except BaseException:  # users' code may interrupt the main thread at any time
                continue

    def _receive(self) -> None:
        """Receive calls until the parent is gone, then end the process, even if episodes are busy."""
        threads: dict[int, _EpisodeThread] = {}
        try:
            while True:
                number, (name, *arguments) = receive_case(self._connection)
                match name:
                    case "open":
                        split, index = arguments
                        threads[number] = _EpisodeThread(self, self._environments[split])
                        threads[number].call(number, name, index)
                    case "respond" | "verdict":
                        threads[arguments[0]].call(number, name, *arguments[1:])
                    case "close":
                        threads.pop(arguments[0]).close(number)
                    case _:
                        asked = _EpisodeThread(self, self._environments["training"])
                        asked.call(number, name, *arguments)
        except (EOFError, OSError):
            _exit(0)
        finally:
            _exit(1)

    def began(self, number: int) -> None:
        """Tell that the calling thread works on a call."""
        self._send({"began": number, "thread": threading.get_ident(), "tid": threading.get_native_id()})

    def ended(self, number: int, reply: Reply) -> None:
        """Send the reply to a call."""
        try:
            pack_message(reply)
        except (TypeError, ValueError, RecursionError) as error:
            reply = _Wrong(f"returned what JSON cannot hold: {error}", "return texts and numbers").reply
        self._send({"ended": number} | reply)

    def counts(self) -> Reply:
        """The number of items of each split."""
        return {"counts": {split: environment.num_items for split, environment in self._environments.items()}}


class _EpisodeThread:
    """A thread with an event loop, and the episode that lives there."""

    def __init__(self, server: _EpisodeServer, environment: Environment) -> None:
        self._server = server
        self._environment = environment
        self._calls: queue.SimpleQueue[tuple[int, str, tuple[Any, ...]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closing = False
        self._running: asyncio.Task[Any] | None = None
        self._episode: Episode
        self._opened = False
        threading.Thread(target=self._work, daemon=True).start()

    def call(self, number: int, name: str, *arguments: Any) -> None:
        """Queue a call."""
        self._calls.put((number, name, arguments))

    def close(self, number: int) -> None:
        """Cancel the call in progress, and queue the last one."""
        with self._lock:
            self._closing = True
            if self._running is not None:
                self._running.get_loop().call_soon_threadsafe(self._running.cancel)
        self.call(number, "close")

    def _work(self) -> None:
        runner, name = asyncio.Runner(), ""
        while name not in _LAST:
            number, name, arguments = self._calls.get()
            self._server.began(number)
            try:
                reply = runner.run(self._cancellable(name, arguments))
                if name in _LAST:
                    runner.close()
            except _Wrong as error:
                reply = error.reply
            except NoReward as error:
                reply = _Wrong(str(error), error.remedy).reply
            except BaseException as error:
                reply = {"happened": raised(error), **blame(error, "make it answer whatever the policy says")}
            self._server.ended(number, reply)

    async def _cancellable(self, name: str, arguments: tuple[Any, ...]) -> Reply:
        with self._lock:
            if self._closing and name != "close":
                return {}
            self._running = None if name == "close" else asyncio.current_task()
        try:
            return await self._answer(name, arguments)
        finally:
            with self._lock:
                self._running = None

    async def _answer(self, name: str, arguments: tuple[Any, ...]) -> Reply:
        match name:
            case "open":
                return await self._open(*arguments)
            case "respond":
                return await self._respond(*arguments)
            case "verdict":
                return await self._verdict(*arguments)
            case "close":
                if self._opened:
                    await _awaitable(self._episode.close(), "close")
                return {}
            case "demonstrate":
                return {"demonstrations": [_demonstration(self._environment, index) for index in range(*arguments)]}
            case _:
                return self._server.counts()

    async def _open(self, index: int) -> Reply:
        episode = await _awaitable(self._environment.open(index), "open")
        if not isinstance(episode, Episode):
            raise _Wrong(f"returned {episode!r:.200}", "return an Episode")
        self._episode, self._opened = episode, True
        try:
            prompt = episode.prompt
        except AttributeError as error:
            if error.obj is not episode or error.name != "prompt":
                raise
            raise _Wrong("returned an episode without a prompt", "set self.prompt, a text or a Chat") from None
        if isinstance(prompt, str) and prompt:
            return {"text": prompt}
        if isinstance(prompt, Chat) and prompt.messages:
            return {"messages": _messages(prompt.messages), "tools": [dict(tool) for tool in prompt.tools]}
        raise _Wrong(f"opened with the prompt {prompt!r:.200}", "make it a text, or a Chat with messages")

    async def _respond(self, turn: str, longest: int) -> Reply:
        """longest: an answer with more characters is not sent."""
        answer = await _awaitable(self._episode.respond(turn), "respond")
        if answer is None:
            return {"answer": None}
        if isinstance(answer, str):
            return {"answer": answer} if len(answer) <= longest else {"too_long": True}
        if not isinstance(answer, Sequence) or not answer:
            raise _Wrong(f"returned {answer!r:.200}", "return a text, a list of messages, or None")
        messages = _messages(answer)
        fits = sum(len(str(message)) for message in messages) <= longest
        return {"answer": messages} if fits else {"too_long": True}

    async def _verdict(self, completion: Completion) -> Reply:
        verdict = await _awaitable(self._episode.verdict(completion), "verdict")
        if not isinstance(verdict, Verdict):
            raise _Wrong(f"returned {verdict!r:.200}", "return a Verdict")
        if not isinstance(verdict.parts, Mapping) or len(verdict.parts) > NAMES_MAX:
            raise _Wrong(f"returned the parts {shown(verdict.parts)}", f"return a mapping of at most {NAMES_MAX} parts")
        reward, correct = _number("reward", verdict.reward), _number("correct", verdict.correct)
        if correct not in (0, 1):
            raise _Wrong(f"returned {shown(verdict.correct)} as correct", "make it True or False")
        try:
            parts = {as_name(name): _number(f"part {name!r}", part) for name, part in verdict.parts.items()}
        except NoReward as error:
            raise _Wrong(str(error), error.remedy) from error
        return {"reward": reward, "correct": bool(correct), "parts": parts}


def _number(what: str, value: object) -> float:
    """A finite number of a verdict, as verifiers' rewards must be."""
    try:
        return as_reward(value)
    except NoReward as error:
        remedy = "make it True or False" if what == "correct" else f"make it a number within ±{LARGEST:g}"
        raise _Wrong(f"{error} as {what}", remedy) from error


def _awaitable(returned: Any, name: str) -> Awaitable[Any]:
    if isinstance(returned, Awaitable):
        return returned
    raise _Wrong(f"is a plain function, which returned {returned!r:.200}", f"write `async def {name}`")


def _demonstration(environment: Environment, index: int) -> list[str] | None:
    texts = environment.demonstration(index)
    if texts is None:
        return None
    if isinstance(texts, str) or len(texts) < 2 or not all(isinstance(text, str) for text in texts):
        raise _Wrong(f"returned {texts!r:.200}", "return the prompt's text, the policy's turn, and so on")
    return list(texts)


def _messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise _Wrong(f"returned the message {message!r:.200}", 'write {"role": …, "content": …}')
    return [dict(message) for message in messages]
