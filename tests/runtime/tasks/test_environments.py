"""Environments may do anything: each fault costs its own rollout, and the state of each is its own."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from fsm.errors import ConfigError
from runtime.settings import load_settings
from runtime.tasks.base import Completion, TaskError, Verdict
from runtime.tasks.config import CustomTaskConfig, DataConfig
from runtime.tasks.data import load_task
from runtime.tasks.environments import host as hosts
from runtime.tasks.environments.code import EnvironmentCode
from runtime.tasks.environments.host import EnvironmentLost
from runtime.tasks.environments.pool import EnvironmentFault, EnvironmentPool, HostedEpisode, TurnTooLong
from runtime.tasks.environments.task import open_environments, try_environment
from tests.started import started

USERS = Path(__file__).parents[2] / "users"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(USERS)
    monkeypatch.setattr(hosts, "DEAF_S", 1.5)
    yield
    until_s = time.monotonic() + 30
    while _left() and time.monotonic() < until_s:
        time.sleep(0.05)
    assert _left() == []


def _left() -> list[str]:
    """Environment processes of these tests."""
    return started("runtime.tasks.environments.program", str(USERS))


def code(target: str = "wild_environments:Deeds", **options: Any) -> EnvironmentCode:
    return EnvironmentCode(target, json.dumps(options), seed=5, held_out=True)


def within(
    scenario: Callable[[EnvironmentPool], Awaitable[Any]],
    *,
    processes: int = 1,
    timeout_s: float = 20.0,
    target: str = "wild_environments:Deeds",
    **options: Any,
) -> Any:
    async def run() -> Any:
        pool = EnvironmentPool(code(target, **options), processes, timeout_s, max_prompt_tokens=100)
        try:
            return await scenario(pool)
        finally:
            await pool.close()

    return asyncio.run(asyncio.wait_for(run(), timeout=120))


def completion(*turns: str) -> Completion:
    return Completion(turns, tokens=1, finish_reason="stop")


def test_episodes_keep_their_own_state_and_thread_and_share_processes() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        episodes = [await pool.open("training", index) for index in range(6)]
        held_out = await pool.open("validation", 3)
        assert [episode.prompt for episode in episodes] == [f"training 5 {index}" for index in range(6)]
        assert held_out.prompt == "validation 5 3"
        assert await episodes[1].respond("hello") == "hello again"
        places = [str(await episode.respond("where")).split() for episode in episodes]
        assert len({process for process, _ in places}) == 2
        assert len({(process, thread) for process, thread in places}) == 6
        assert await episodes[1].respond("where") == " ".join(places[1])
        turns = [(await episode.verdict(completion("where"))).reward for episode in episodes]
        assert turns == [-1.0, -3.0, -1.0, -1.0, -1.0, -1.0]
        assert await episodes[0].respond("messages") == [{"role": "tool", "content": "42"}]
        assert await episodes[0].respond("ends") is None

    within(scenario, processes=2)


def test_answers_arrive_when_the_environment_has_replaced_json_dumps() -> None:
    async def scenario(pool: EnvironmentPool) -> list[Any]:
        episode = await pool.open("training", 0)
        return [await episode.respond(turn) for turn in ("replaces-json", "größer")]

    assert within(scenario) == ["replaced", "größer again"]


FAULTS = {
    "exits": "called os._exit (",
    "is-killed": "had its process killed by SIGKILL",
    "segfaults": "crashed: Segmentation fault (",
    "raises": "raised ValueError: no such tool (",
    "sys.exit": "raised SystemExit: bye (",
    "number": "returned 7; return a text, a list of messages, or None",
    "not-json": "returned what JSON cannot hold",
    "no-role": "returned the message {'content': 'a'}",
}


@pytest.mark.parametrize("deed", FAULTS)
def test_a_fault_names_the_item_the_turn_and_the_line(deed: str) -> None:
    async def scenario(pool: EnvironmentPool) -> str:
        episode = await pool.open("training", 2)
        with pytest.raises(EnvironmentFault) as raised:
            await episode.respond(deed)
        assert await (await pool.open("training", 2)).respond("a") == "a again", "the next finds a process"
        return str(raised.value)

    said = within(scenario)
    assert said.startswith(
        f"environment 'wild_environments:Deeds', item 2 of training ('training 5 2'): respond to the turn '{deed}' "
    )
    assert FAULTS[deed] in said
    if FAULTS[deed].endswith("("):
        assert "wild_environments.py:" in said


def test_what_ends_a_process_costs_its_own_episode_and_the_others_are_lost_through_no_fault_of_theirs() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        guilty, idle, busy = [await pool.open("training", index) for index in range(3)]
        napping = asyncio.create_task(busy.respond("naps"))
        await asyncio.sleep(0.3)
        with pytest.raises(EnvironmentFault, match=r"called os\._exit"):
            await guilty.respond("exits")
        with pytest.raises(EnvironmentLost, match="another rollout"):
            await napping
        with pytest.raises(EnvironmentLost, match="another rollout"):
            await idle.respond("hello")

    within(scenario)


def test_a_tool_that_sleeps_costs_its_own_episode_alone_and_no_other_waits_for_it() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        slow, asleep, other = [await pool.open("training", index) for index in range(3)]
        blocked = asyncio.create_task(slow.respond("blocks"))
        waiting = asyncio.create_task(asleep.respond("waits"))
        await asyncio.sleep(0.2)
        began = time.monotonic()
        for _ in range(50):
            assert await other.respond("a") == "a again"
        assert time.monotonic() - began < 2
        for late in (blocked, waiting):
            with pytest.raises(EnvironmentFault, match=r"within data.task.timeout_s = 3 s \(.*:\d+ in "):
                await late
        assert await other.respond("a") == "a again", "it goes on in the process that takes no more episodes"
        new = await pool.open("training", 4)
        assert (await new.respond("where")) != (await other.respond("where"))

    within(scenario, timeout_s=3.0)


def test_what_keeps_the_interpreter_to_itself_is_found_and_the_rest_are_lost() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        guilty, other = [await pool.open("training", index) for index in range(2)]
        hog = asyncio.create_task(guilty.respond("regex"))
        await asyncio.sleep(0.3)
        late = asyncio.create_task(other.respond("a"))
        with pytest.raises(EnvironmentFault, match=r"kept the interpreter from all others for \d+ s \(.*\.py:\d+ in"):
            await hog
        with pytest.raises(EnvironmentLost, match="another rollout kept its process busy"):
            await late

    within(scenario)


def test_an_aborted_episode_is_cancelled_and_closed(tmp_path: Path) -> None:
    closed = tmp_path / "closed"

    async def scenario(pool: EnvironmentPool) -> None:
        episode = await pool.open("training", 0)
        waiting = asyncio.create_task(episode.respond("waits"))
        await asyncio.sleep(0.2)
        waiting.cancel()
        await episode.close()
        other = await pool.open("training", 1)
        for _ in range(100):
            await asyncio.sleep(0.02)
            if closed.exists():
                break
        assert closed.read_text() == "closed\n"
        assert await other.respond("a") == "a again"

    within(scenario, closed=str(closed))


@pytest.mark.parametrize(
    ("deed", "wrong"),
    [
        ("asks-for-memory", r"raised MemoryError: .*\.py:"),
        ("eats-memory", "made its process use more than data.task.memory_mib = 400 MiB"),
    ],
)
def test_memory_beyond_the_limit_costs_the_episode_that_takes_it(deed: str, wrong: str) -> None:
    async def scenario() -> None:
        pool = EnvironmentPool(code(), 1, 20.0, max_prompt_tokens=100, memory_mib=400)
        try:
            episode = await pool.open("training", 0)
            with pytest.raises(EnvironmentFault, match=wrong):
                await episode.respond(deed)
            assert await (await pool.open("training", 0)).respond("a") == "a again"
        finally:
            await pool.close()

    asyncio.run(asyncio.wait_for(scenario(), timeout=60))


@pytest.mark.parametrize("deed", ["says-much", "says-many"])
def test_an_answer_that_cannot_fit_is_not_even_sent(deed: str) -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        with pytest.raises(TurnTooLong):
            await (await pool.open("training", 0)).respond(deed)

    within(scenario)


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("nan", r"returned nan as reward; make it a number within ±1e\+15"),
        ("infinite", "returned inf as reward; make it a number"),
        ("huge", r"returned 1e\+300 as reward; make it a number"),
        ("text", "returned '2.5' as reward; make it a number"),
        ("half-correct", "returned 0.5 as correct; make it True or False"),
        ("no", "returned 'no' as correct; make it True or False"),
        ("part-text", "returned '1e3' as part 'a'; make it a number"),
        ("part-nan", "returned nan as part 'a'; make it a number"),
        ("part-unnamed", "returned a mapping with the key 1; name each part"),
        ("part-list", r"returned the parts \[1.0\]; return a mapping"),
        ("part-many", "returned the parts .*; return a mapping of at most 64 parts"),
        ("surrogate", r"returned a mapping with the key 'a\\ud800'.*printable text"),
        ("float", "returned 1.0; return a Verdict"),
        ("parts", r"has the parts \['other'\], and those before \[\]"),
    ],
)
def test_a_verdict_is_checked(said: str, wrong: str) -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        episode: HostedEpisode = await pool.open("training", 0)
        assert await episode.verdict(completion("fine")) == Verdict(-0.0, correct=False)
        with pytest.raises(EnvironmentFault, match=wrong):
            await episode.verdict(completion(said))

    within(scenario)


def test_a_part_of_the_name_reward_is_a_part() -> None:
    async def scenario(pool: EnvironmentPool) -> Verdict:
        return await (await pool.open("training", 0)).verdict(completion("part-reward"))

    assert within(scenario) == Verdict(-4.0, correct=False, parts={"reward": 4.0, "correct": 0.5})


@pytest.mark.parametrize("own", [{"timeout_s": 2.0}, {"memory_mib": 400}, {"processes": 1}])
def test_a_set_with_settings_of_its_own_has_processes_of_its_own(own: dict[str, Any]) -> None:
    def data(**settings: Any) -> DataConfig:
        return DataConfig(task=CustomTaskConfig(target="wild_environments:Deeds", **settings), validation_size=4)

    async def run() -> None:
        async with AsyncExitStack() as stack:
            pools = await open_environments(
                {"training": (data(), 10), "same": (data(), 60_000), "own": (data(**own), 10)}, stack
            )
            assert pools["same"] is pools["training"]
            assert pools["own"] is not pools["training"]
            long = await (await pools["same"].open("validation", 0)).respond("says-much")
            assert isinstance(long, str), "the longest prompt of those that share it counts"
            apart = await pools["own"].open("validation", 0)
            with pytest.raises(TurnTooLong):
                await apart.respond("says-much")
            if "timeout_s" in own:
                with pytest.raises(EnvironmentFault, match=r"within data.task.timeout_s = 2 s"):
                    await apart.respond("blocks")
            if "memory_mib" in own:
                with pytest.raises(EnvironmentFault, match=r"data\.task\.memory_mib = 400 MiB"):
                    await apart.respond("eats-memory")
            if "processes" in own:
                places = [str(await (await pools["own"].open("validation", i)).respond("where")) for i in range(3)]
                assert len({place.split()[0] for place in places}) == 1

    asyncio.run(asyncio.wait_for(run(), timeout=60))


def test_what_is_printed_is_told_once() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        assert await (await pool.open("training", 0)).respond("prints") == "printed"
        told = pool.take_printed()
        assert told is not None
        assert "Deeds' prints: 'xxx" in told
        assert pool.take_printed() is None

    within(scenario)


@pytest.mark.parametrize(
    ("target", "options", "wrong"),
    [
        ("wild_environments", {}, "write it as module:Class"),
        ("no_such_module:A", {}, "importing no_such_module failed"),
        ("wild_environments:Doing", {}, "of these wild_environments has Asking, Deeds, "),
        ("wild_environments:Unmade", {}, "raised TypeError: Can't instantiate"),
        ("wild_environments:Deeds", {"unknown": 1}, "raised TypeError: .*unexpected keyword argument 'unknown'"),
        ("wild_environments:Deeds", {"made": "exits"}, r"while it was made, it called os._exit \(.*\.py:"),
        ("wild_environments:Deeds", {"opening": "raises"}, r"open raised ValueError: no such tool \(.*\.py:"),
        ("wild_environments:Deeds", {"unknown": 1}, "^environment 'wild_environments:Deeds': while it was made, it r"),
        ("wild_environments:Plain", {"plain": "open"}, "open is a plain function, .*; write `async def open`"),
        (
            "wild_environments:Plain",
            {"plain": "respond"},
            "respond .* is a plain function, .*write `async def respond`",
        ),
        (
            "wild_environments:Plain",
            {"plain": "verdict"},
            "verdict .* is a plain function, .*write `async def verdict`",
        ),
        ("wild_environments:Plain", {"plain": "prompt"}, "open returned an episode without a prompt; set self.prompt"),
        ("wild_environments:Deeds", {"items": 0}, "num_items of training is 0"),
        ("wild_environments:Deeds", {"items": 10}, "has 10 items, and data.num_prompts asks for the first 30"),
    ],
)
def test_an_environment_that_cannot_run_is_refused_before_the_run(target: str, options: Any, wrong: str) -> None:
    task = CustomTaskConfig(target=target, options=options, timeout_s=20)
    data = DataConfig(task=task, num_prompts=30, validation_size=4)

    def check() -> None:
        assert load_task(data, "training").num_prompts == 30
        if problem := try_environment(task, data, lambda text: None):
            raise TaskError(problem)

    with pytest.raises(TaskError, match=wrong):
        check()


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ("{day: 2020-01-01}", 'day is 2020-01-01, which YAML reads as a date: quote it, "2020-01-01"'),
        ("{env: {days: [a, 2020-01-01 10:00:00]}}", r"env\.days\[1\] is 2020-01-01 10:00:00, .* a datetime: quote it"),
        ("{names: !!set {a}}", "names is {'a'}, a set: options are sent as JSON"),
    ],
)
def test_an_option_that_is_not_json_is_refused_with_its_name(tmp_path: Path, options: str, wrong: str) -> None:
    (tmp_path / "run.yaml").write_text(
        f"data: {{task: {{name: custom, target: 'wild_environments:Deeds', options: {options}}}}}"
    )
    with pytest.raises(ConfigError, match=wrong) as raised:
        load_settings(tmp_path / "run.yaml", [])
    assert "data.task" in str(raised.value)
    quoted = CustomTaskConfig(target="a:B", options={"day": "2020-01-01", "n": [1, None, True, {"x": 0.5}]})
    assert quoted.options["day"] == "2020-01-01"


@pytest.mark.parametrize(("items", "training", "held_out"), [(None, 65_536, 8), (5, 5, 5), (50, 50, 8)])
def test_items_are_those_that_the_environment_has(items: int | None, training: int, held_out: int) -> None:
    task = CustomTaskConfig(target="wild_environments:Deeds", options={"items": items})
    data = DataConfig(task=task, validation_size=8)
    assert load_task(data, "training").num_prompts == training
    assert load_task(data, "validation").num_prompts == held_out


def test_a_tool_that_is_out_of_reach_is_an_infra_failure_of_its_rollout_alone() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        refused, wrong, good = [await pool.open("training", index) for index in range(3)]
        with pytest.raises(
            EnvironmentLost, match=r"respond to the turn 'refused' raised ConnectionRefusedError.*retried"
        ):
            await refused.respond("refused")
        with pytest.raises(EnvironmentLost, match="'wrapped' raised Refusal: the judge did not answer"):
            await refused.verdict(completion("wrapped"))
        with pytest.raises(EnvironmentFault, match="raised ValueError: HTTP 400"):
            await wrong.respond("bad-request")
        assert await good.respond("good") == "good"

    within(scenario, target="calling:Calling")
