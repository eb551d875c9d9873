"""Environments of skyrl-gym (https://github.com/NovaSky-AI/SkyRL), an extra: `evenstep[skyrl-gym]`.

Items are rows as SkyRL's data sets have them, one JSON object a line: `prompt`, a list of messages, and what the
environment reads (`reward_spec`, `extra_info`, …), which it gets as `extras`. As in SkyRL, a rollout's reward is the
sum of its steps' rewards.

Their environments are synchronous and may block: each episode has a thread of its own. Every turn of the policy is a
`step`; the last one is taken for the verdict, if the rollout ended before it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import skyrl_gym
from skyrl_gym.envs.registration import registry

from runtime.tasks.base import Chat, Completion, TaskError, Verdict
from runtime.tasks.environments.interface import Environment, Episode, Message
from runtime.tasks.judges import as_reward
from runtime.tasks.split import is_held_out


class SkyRLGym(Environment):
    """One environment of skyrl-gym over the rows of a file."""

    def __init__(
        self,
        *,
        split: Literal["training", "validation"],
        seed: int,
        environment: str,
        path: str,
        validation_path: str | None = None,
        held_out_fraction: float = 0.1,
        env_config: Mapping[str, Any] | None = None,
        correct_at: float = 1.0,
        prompts: Literal["chat", "text"] = "chat",
    ) -> None:
        """Raises TaskError for a wrong row, or an environment that is not registered.

        environment: an id that is registered, such as gsm8k, or `module:Class`, which gets registered.
        validation_path: rows of validation; None: a fraction of `path`, as the prompts' texts decide.
        env_config: passed to the environment.
        correct_at: the lowest reward that counts as correct.
        prompts: chat: messages go through the chat template; text: their contents alone, for a model that has none.
        """
        if ":" in environment and environment not in registry:
            skyrl_gym.register(id=environment, entry_point=environment)
        if environment not in registry:
            raise TaskError(
                f"skyrl-gym has no environment {environment!r}; it has {', '.join(sorted(registry))}; for one of yours "
                "write module:Class"
            )
        self._environment, self._env_config = environment, dict(env_config or {})
        self._correct_at, self._prompts = correct_at, prompts
        rows = _rows(Path(validation_path if validation_path and split == "validation" else path))
        if validation_path is None:
            rows = [
                row for row in rows if is_held_out(_text(row["prompt"]), held_out_fraction) == (split == "validation")
            ]
        if not rows:
            raise TaskError(f"{path}: no row is left for {split}; add rows, or name a validation_path")
        self._rows = rows
        self.num_items = len(rows)

    async def open(self, index: int) -> Episode:
        """An environment of its own for the rollout."""
        row = self._rows[index]
        extras = {name: value for name, value in row.items() if name != "prompt"}
        env = skyrl_gym.make(self._environment, env_config=self._env_config, extras=extras)
        messages, _ = env.init([dict(message) for message in row["prompt"]])
        prompt = Chat(tuple(messages)) if self._prompts == "chat" else _text(messages)
        return _SkyRLEpisode(env, prompt, self._correct_at)


class _SkyRLEpisode(Episode):
    def __init__(self, env: Any, prompt: str | Chat, correct_at: float) -> None:
        self.prompt = prompt
        self._env = env
        self._correct_at = correct_at
        self._reward = 0.0
        self._steps = 0

    async def respond(self, turn: str) -> str | list[Message] | None:
        """The step's observations; None if it is done, or observes nothing."""
        stepped = self._step(turn)
        observations: list[Message] = [dict(message) for message in stepped["observations"]]
        if stepped["done"] or not observations:
            return None
        return observations if isinstance(self.prompt, Chat) else _text(observations)

    async def verdict(self, completion: Completion) -> Verdict:
        """The sum of the steps' rewards; parts are the metrics of the environment that are numbers."""
        for turn in completion.turns[self._steps :]:
            self._step(turn)
        metrics = {name: float(value) for name, value in self._env.get_metrics().items() if _is_number(value)}
        return Verdict(self._reward, self._reward >= self._correct_at, metrics)

    async def close(self) -> None:
        """Close their environment."""
        self._env.close()

    def _step(self, turn: str) -> dict[str, Any]:
        self._steps += 1
        stepped: dict[str, Any] = self._env.step(turn)
        self._reward += as_reward(stepped["reward"])
        return stepped


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _text(messages: Sequence[Message]) -> str:
    return "\n".join(str(message["content"]) for message in messages)


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        row = json.loads(line)
        prompt = row.get("prompt") if isinstance(row, dict) else None
        if not isinstance(prompt, list) or not all(isinstance(message, dict) for message in prompt) or not prompt:
            raise TaskError(f'{path}:{number}: "prompt" must be a list of messages, {{"role": …, "content": …}}')
        rows.append(row)
    return rows
