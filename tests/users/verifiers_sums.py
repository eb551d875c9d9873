"""Tasksets of verifiers 0.4: sums in one turn, with a tool, and with a simulated user."""

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["Guess", "Sums"]


class SumData(vf.TaskData):
    answer: int


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def right(self, task: SumData, trace: vf.Trace) -> float:
        if trace.last_reply == "both":
            trace.record_metric("right", 0.5)
        return float(trace.last_reply.strip() == str(task.answer))

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)

    @vf.stop
    async def said_stop(self, trace: vf.Trace) -> bool:
        return trace.num_turns > 0 and trace.last_reply == "stop"


class SumsConfig(vf.TasksetConfig):
    fails: bool = False


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self) -> Iterator[SumTask]:
        for number in range(40):
            yield SumTask(
                SumData(prompt=f"{number}+{number + 1}=", system_prompt="add", answer=2 * number + 1), self.config.task
            )


class GuessConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class Guess(vf.Env[GuessConfig]):
    """Says whether an answer is too high or too low, up to three times."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            for _ in range(2):
                if segment.terminated or segment.last_reply == str(task.data.answer):
                    break
                if segment.last_reply == "crash":
                    raise ValueError("the user is gone")
                segment = await interaction.turn("low" if segment.last_reply < str(task.data.answer) else "high")
