"""Environments of other packages play as theirs do. Each test needs its extra."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.tasks.base import Chat, Completion
from runtime.tasks.config import CustomTaskConfig, DataConfig
from runtime.tasks.environments.code import EnvironmentCode
from runtime.tasks.environments.pool import EnvironmentFault, EnvironmentPool
from runtime.tasks.environments.task import try_environment

USERS = Path(__file__).parents[2] / "users"
SKYRL_GYM = "runtime.tasks.environments.skyrl_gym:SkyRLGym"
VERIFIERS = "runtime.tasks.environments.verifiers:Verifiers"


def needs(package: str) -> None:
    extra = package.replace("_", "-")
    pytest.importorskip(package, reason=f"pip install -c constraints.txt -e '.[{extra}]' installs it")


def within(target: str, options: dict[str, Any], scenario: Callable[[EnvironmentPool], Awaitable[None]]) -> None:
    async def run() -> None:
        code = EnvironmentCode(target, json.dumps(options), seed=0, held_out=True)
        pool = EnvironmentPool(code, 1, 60.0, max_prompt_tokens=1000)
        try:
            await scenario(pool)
        finally:
            await pool.close()

    asyncio.run(run())


def completion(*turns: str, cut: bool = False) -> Completion:
    return Completion(turns, tokens=1, finish_reason="length" if cut else "stop")


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """As SkyRL's gsm8k data sets have them."""
    path = tmp_path / "sums.jsonl"
    lines = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"{a}+{b}? End with #### and the number."}],
            "env_class": "gsm8k_multi_turn",
            "reward_spec": {"method": "rule", "ground_truth": str(a + b)},
            "extra_info": {"max_turns": 3},
        }
        for a in range(10)
        for b in range(10)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_a_skyrl_gym_environment_pays_for_its_steps(rows: str) -> None:
    needs("skyrl_gym")

    async def scenario(pool: EnvironmentPool) -> None:
        counts = (await pool.ask("count"))["counts"]
        assert counts["training"] + counts["validation"] == 100
        assert counts["validation"] > 0
        episode = await pool.open("training", 0)
        assert isinstance(episode.prompt, Chat)
        asked = str(episode.prompt.messages[0]["content"])
        right = sum(map(int, asked.split("?")[0].split("+")))
        answer = await episode.respond("hm #### 99")
        assert isinstance(answer, list)
        assert "tentative numeric answer" in answer[0]["content"]
        assert await episode.respond(f"so #### {right}") is None
        verdict = await episode.verdict(completion("hm #### 99", f"so #### {right}"))
        assert (verdict.correct, verdict.parts) == (True, {"steps": 2.0})
        assert verdict.reward == pytest.approx(1 + 0.2 / 3)
        cut = await pool.open("training", 0)
        assert (await cut.verdict(completion("hm", cut=True))).reward == 0, "its only turn was stepped"

    within(SKYRL_GYM, {"environment": "gsm8k_multi_turn", "path": rows}, scenario)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"environment": "gsm9k"}, "skyrl-gym has no environment 'gsm9k'; it has aime, gsm8k, "),
        ({"environment": "gsm8k", "held_out_fraction": 0}, "no row is left for validation"),
    ],
)
def test_a_skyrl_gym_environment_that_cannot_run_is_refused(rows: str, options: dict[str, Any], wrong: str) -> None:
    needs("skyrl_gym")
    task = CustomTaskConfig(target=SKYRL_GYM, options={"path": rows, **options})
    assert wrong in (try_environment(task, DataConfig(task=task), lambda text: None) or "")


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(USERS)


def test_a_taskset_of_verifiers_is_played_in_one_turn(importable: None) -> None:
    needs("verifiers")

    async def scenario(pool: EnvironmentPool) -> None:
        assert (await pool.ask("count"))["counts"] == {"training": 36, "validation": 4}
        episode = await pool.open("training", 3)
        assert episode.prompt == Chat(({"role": "system", "content": "add"}, {"role": "user", "content": "3+4="}))
        assert await episode.respond("7") is None
        verdict = await episode.verdict(completion("7"))
        assert (verdict.reward, verdict.correct, verdict.parts) == (2.0, True, {"right": 1.0, "turns": 1.0})
        assert (await pool.open("validation", 0)).prompt != episode.prompt

    options = {"taskset": {"id": "verifiers_sums"}, "env": {"id": "single-agent"}, "held_out": 4}
    within(VERIFIERS, options, scenario)


def test_a_metric_of_verifiers_with_the_name_of_a_reward_hides_none(importable: None) -> None:
    needs("verifiers")

    async def scenario(pool: EnvironmentPool) -> None:
        episode = await pool.open("training", 3)
        assert await episode.respond("both") is None
        verdict = await episode.verdict(completion("both"))
        assert verdict.parts == {"right": 0.0, "metrics/right": 0.5, "turns": 1.0}

    options = {"taskset": {"id": "verifiers_sums"}, "env": {"id": "single-agent"}, "held_out": 4}
    within(VERIFIERS, options, scenario)


def test_an_environment_of_verifiers_with_a_user_answers_each_turn(importable: None) -> None:
    needs("verifiers")

    async def scenario(pool: EnvironmentPool) -> None:
        episode = await pool.open("training", 3)
        assert await episode.respond("9") == [{"role": "user", "content": "high"}]
        assert await episode.respond("7") is None
        verdict = await episode.verdict(completion("9", "7"))
        assert (verdict.reward, verdict.parts["turns"]) == (2.0, 2.0)

        stopped = await pool.open("training", 3)
        assert await stopped.respond("9") == [{"role": "user", "content": "high"}]
        verdict = await stopped.verdict(completion("9", "8", cut=True))
        assert (verdict.reward, verdict.parts["turns"]) == (0.0, 2.0)

        aborted = await pool.open("training", 3)
        await aborted.close()

        broken = await pool.open("training", 3)
        assert await broken.respond("crash") is None
        with pytest.raises(EnvironmentFault, match=r"ValueError: the user is gone \(.*verifiers_sums\.py:\d+\)"):
            await broken.verdict(completion("crash"))

    within(VERIFIERS, {"taskset": {"id": "verifiers_sums"}, "held_out": 4}, scenario)


def test_a_tool_of_verifiers_is_called_as_qwen_writes_calls(importable: None) -> None:
    needs("verifiers")

    async def scenario(pool: EnvironmentPool) -> None:
        episode = await pool.open("training", 3)
        assert isinstance(episode.prompt, Chat)
        (tool,) = episode.prompt.tools
        name = tool["function"]["name"]
        call = {"name": name, "arguments": {"a": 13, "b": 14}}
        answer = await episode.respond(f"I compute. <tool_call>\n{json.dumps(call)}\n</tool_call>")
        assert isinstance(answer, list)
        assert [(message["role"], message["content"]) for message in answer] == [("tool", "182")]
        assert await episode.respond("182") is None
        assert (await episode.verdict(completion("call", "182"))).correct
        lost = await pool.open("training", 3)
        answer = await lost.respond('<tool_call>{"name": "divide", "arguments": {}}</tool_call>')
        assert isinstance(answer, list)
        assert "unknown tool 'divide'" in answer[0]["content"]

    within(VERIFIERS, {"taskset": {"id": "verifiers_calculator"}, "held_out": 4}, scenario)


def test_a_taskset_with_too_few_tasks_is_refused(importable: None) -> None:
    needs("verifiers")
    task = CustomTaskConfig(target=VERIFIERS, options={"taskset": {"id": "verifiers_sums"}, "held_out": 40})
    problem = try_environment(task, DataConfig(task=task), lambda text: None)
    assert "has 40 tasks, and held_out is 40; lower it" in (problem or "")
