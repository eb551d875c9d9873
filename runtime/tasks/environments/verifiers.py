"""Environments of verifiers 0.4 (https://github.com/PrimeIntellect-ai/verifiers), an extra: `evenstep[verifiers]`.

Theirs is an environment that calls a model: a harness sends chat completions to a server of the rollout's, and that
asks a client. Here the client is the policy: a request is what `open` and `respond` return, and the policy's turn is
its completion. So tasksets, tools, simulated users and several turns work as theirs, while tokens and
log-probabilities stay those of evenstep's engine. Driving their classes without the server would bypass their limits,
stops and hooks, which live in it.

Their harnesses run programs that `uv` installs. `EvenstepHarness` is their null harness inside the process: a chat
loop that calls the task's tools. Each episode has its server on a port of this machine, and a shallow copy of the
environment, since both belong to one event loop.
"""

import asyncio
import copy
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal

import openai
import verifiers.v1 as vf
from verifiers.v1.clients import Client
from verifiers.v1.dialects.chat import ChatDialect, message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.interception import InterceptionServer
from verifiers.v1.utils.loaders import env_config_type, load_environment

from runtime.tasks.base import Chat, Completion, TaskError, Verdict
from runtime.tasks.environments.interface import Environment, Episode, Message
from runtime.tasks.verdicts.clues import is_of_users

__all__ = ["EvenstepHarness"]
_HARNESS = "evenstep_chat"
sys.modules[_HARNESS] = sys.modules[__name__]  # verifiers finds a harness by the name of a module
_MODEL = "policy"
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_LINE = re.compile(r'File "([^"]+)", line (\d+)')


class EvenstepHarness(vf.Harness[vf.HarnessConfig]):
    """A chat loop in this process: ask the policy, run the tools that it calls, until it calls none."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace[Any, Any, Any],
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [] if system is None else [{"role": "system", "content": system}]
        messages += (
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else map(message_to_wire, prompt or ())
        )
        async with AsyncExitStack() as stack:
            servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
            tools, dispatch, opened = [], {}, {}
            if servers:
                tools, dispatch, opened = await connect_mcp({"mcpServers": servers}, stack, set())
            client = await stack.enter_async_context(
                openai.AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=None)
            )
            while True:
                try:
                    completion = await client.chat.completions.create(
                        model=ctx.model, messages=messages, tools=tools or openai.omit
                    )
                except openai.APIStatusError as error:  # the rollout was stopped, or its own error is recorded
                    return vf.ProgramResult(exit_code=1, stdout="", stderr=str(error))
                message = completion.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    return vf.ProgramResult(exit_code=0, stdout="", stderr="")
                for call in message.tool_calls:
                    name, arguments = call.function.name, json.loads(call.function.arguments)
                    if name not in dispatch:
                        content = f"error: unknown tool {name!r}; there are {', '.join(dispatch) or 'none'}"
                    elif not isinstance(arguments, dict):
                        content = "error: arguments must be a JSON object"
                    else:
                        content = await call_mcp(opened, dispatch, name, arguments)
                    messages.append({"role": "tool", "tool_call_id": call.id, "name": name, "content": content})


class Verifiers(Environment):
    """A taskset of verifiers, with the environment that it brings, or the one that is named."""

    def __init__(
        self,
        *,
        split: Literal["training", "validation"],
        seed: int,
        taskset: Mapping[str, Any],
        env: Mapping[str, Any] | None = None,
        num_tasks: int | None = None,
        held_out: int = 32,
        correct_at: float = 1.0,
        prompts: Literal["chat", "text"] = "chat",
    ) -> None:
        """Raises TaskError for a taskset that has too few tasks, and the errors of verifiers.

        taskset: its `id`, the name of an installed module, and its options.
        env: further keys of their `[env]` block, such as `id`, or a role with its options.
        num_tasks: how many of its first tasks are used; None: all, of a taskset that ends.
        held_out: so many of these tasks, the last ones, are for validation.
        correct_at: the lowest reward that counts as correct.
        prompts: chat: messages go through the chat template; text: their contents alone, for a model that has none.
        """
        os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))  # its tool servers are programs
        given = {**(env or {}), "taskset": dict(taskset), "interception": {"type": "server"}}
        config_type = env_config_type(str(taskset["id"]), str(given.get("id", "")))
        for role, field in config_type.model_fields.items():
            if isinstance(field.default, vf.AgentConfig):
                own = {"harness": {"id": _HARNESS}, "runtime": {"type": "subprocess"}}
                given[role] = {**own, **given.get(role, {})}
        self._env = load_environment(config_type.model_validate(given))
        if num_tasks is None and not self._env.taskset.bounded:
            raise TaskError(f"the taskset {taskset['id']!r} has no end; set data.task.options.num_tasks")
        tasks = list(itertools.islice(self._env.taskset, num_tasks))
        if len(tasks) <= held_out:
            raise TaskError(
                f"the taskset {taskset['id']!r} has {len(tasks)} tasks, and held_out is {held_out}; lower it"
            )
        cut = len(tasks) - held_out
        self._tasks = tasks[:cut] if split == "training" else tasks[cut:]
        self.num_items = len(self._tasks) or None
        self._correct_at, self._prompts = correct_at, prompts

    async def open(self, index: int) -> Episode:
        """Run their episode up to its first request."""
        rollout = _VerifiersEpisode(copy.copy(self._env), self._tasks[index], self._correct_at, self._prompts)
        await rollout.begin()
        return rollout


class _VerifiersEpisode(Episode):
    def __init__(self, env: vf.Env[Any], task: vf.Task[Any, Any, Any], correct_at: float, prompts: str) -> None:
        self._env, self._task, self._correct_at, self._prompts = env, task, correct_at, prompts
        self._requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._answer: asyncio.Future[dict[str, Any]]
        self._seen: list[dict[str, Any]] = []
        """The messages of the last request."""
        self._delivered = 0
        """Turns of the policy that were passed on."""
        self._waiting = False
        """Whether a request has no answer yet."""
        self._trace: vf.Trace[Any, Any, Any] | None = None
        self._played: asyncio.Task[vf.Episode]

    async def begin(self) -> None:
        """Raises RuntimeError if the episode ends without asking the policy."""
        self._played = asyncio.create_task(self._play())
        request = await self._next_request()
        if request is None:
            raise RuntimeError(f"the episode ended before it asked the policy: {_errors(self._played.result())}")
        messages = tuple(request["messages"])
        self.prompt = Chat(messages, tuple(request.get("tools") or ())) if self._prompts == "chat" else _text(messages)

    async def respond(self, turn: str) -> str | list[Message] | None:
        """What the environment adds before it asks again; None once it asks no more."""
        before = self._seen
        request = await self._deliver(turn, "stop")
        if request is None:
            return None
        added = request["messages"][len(before) + 1 :]
        if [_said(message) for message in request["messages"][: len(before)]] != [
            _said(m) for m in before
        ] or not added:
            raise RuntimeError("the environment began another conversation or rewrote this one; evenstep trains on one")
        return list(added) if self._prompts == "chat" else _text(added)

    async def verdict(self, completion: Completion) -> Verdict:
        """The rewards of their trace; parts are unweighted. A metric of a reward's name is `metrics/NAME`."""
        for turn in completion.turns[self._delivered :]:
            await self._deliver(turn, completion.finish_reason)
        if self._waiting:  # no more turns: their rollout is stopped as by their own limit
            assert self._trace is not None, "it has asked"
            self._trace.stop("max_turns")
            await self._deliver("", "length")
        episode = await self._played
        if not episode.ok or self._trace is None:
            raise RuntimeError(_errors(episode))
        rewards = {name: reward.score if reward else 0.0 for name, reward in self._trace.rewards.items()}
        metrics = {
            f"metrics/{name}" if name in rewards else name: float(value)
            for name, value in self._trace.metrics.items()
            if value is not None
        }
        return Verdict(self._trace.reward, self._trace.reward >= self._correct_at, {**metrics, **rewards})

    async def close(self) -> None:
        """End their episode, if it has not ended."""
        self._played.cancel()
        await asyncio.wait([self._played])

    async def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        """A completion of the policy. Called by the client."""
        self._answer = asyncio.get_running_loop().create_future()
        self._requests.put_nowait(body)
        return await self._answer

    async def _play(self) -> vf.Episode:
        client = vf.TrainClientConfig(base_url="http://127.0.0.1", api_key_var="EVENSTEP_NONE")
        async with self._env.serving():
            server = self._env._interception
            assert isinstance(server, InterceptionServer), "as configured"
            server.clients[client.model_dump_json()] = _Policy(self)
            context = vf.ModelContext(model=_MODEL, client=client)
            return await self._env.run_episode(self._task, context, on_trace=self._minted)

    def _minted(self, trace: vf.Trace[Any, Any, Any]) -> None:
        self._trace = trace

    async def _deliver(self, turn: str, finish_reason: str) -> dict[str, Any] | None:
        self._delivered += 1
        self._waiting = False
        self._answer.set_result(_completion(turn, finish_reason, self._delivered))
        return await self._next_request()

    async def _next_request(self) -> dict[str, Any] | None:
        asking = asyncio.create_task(self._requests.get())
        await asyncio.wait([asking, self._played], return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            asking.cancel()
            return None
        self._seen, self._waiting = asking.result()["messages"], True
        return asking.result()


class _Policy(Client):
    """Their client of a model, answered by the rollout."""

    def __init__(self, rollout: _VerifiersEpisode) -> None:
        self._rollout = rollout

    async def get_response(self, dialect: Any, body: dict[str, Any], *_: Any, **__: Any) -> vf.Response:
        if not isinstance(dialect, ChatDialect):
            raise TypeError(f"{type(dialect).__name__}: evenstep answers chat completions alone; use another harness")
        raw = await self._rollout.asked(body)
        response = dialect.parse_response(dialect.validate_response(raw))
        response.raw = raw
        return response


def _completion(text: str, finish_reason: str, number: int) -> dict[str, Any]:
    """A chat completion; calls of tools are written as Hermes and Qwen write them."""
    calls: list[dict[str, Any]] = []
    for found in _CALL.finditer(text):
        try:
            call = json.loads(found[1])
            function = {"name": str(call["name"]), "arguments": json.dumps(call.get("arguments", {}))}
        except (ValueError, KeyError, TypeError):
            continue  # the environment sees it as text
        calls.append({"id": f"call_{number}_{len(calls)}", "type": "function", "function": function})
    message = {"role": "assistant", "content": _CALL.sub("", text).strip() if calls else text}
    return {
        "id": f"turn-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": _MODEL,
        "choices": [
            {
                "index": 0,
                "message": {**message, "tool_calls": calls} if calls else message,
                "finish_reason": "tool_calls" if calls else finish_reason,
            }
        ],
    }


def _said(message: Message) -> tuple[str, str]:
    return str(message["role"]), _content(message)


def _content(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return str(content or "")


def _text(messages: Sequence[Message]) -> str:
    return "\n".join(_content(message) for message in messages)


def _errors(episode: vf.Episode) -> str:
    """What went wrong in their episode, with the last line that they recorded, preferably of users' code."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not errors:
        return "their episode is not ok, and records no error"
    lines = _LINE.findall(errors[0].traceback or "")
    lines = [line for line in lines if is_of_users(line[0])] or lines
    place = f" ({lines[-1][0]}:{lines[-1][1]})" if lines else ""
    return f"{errors[0].type}: {errors[0].message}{place}"
