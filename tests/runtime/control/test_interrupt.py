"""The controller is an asyncio actor: `interrupt` may begin before `run`, though it was called later."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoints.origin import Origin
from runtime.control import controller as controller_module
from runtime.control.controller import Controller
from runtime.control.failures import InterruptedAtStart
from runtime.control.messages import RunPlan, Start
from runtime.naming import Names
from runtime.output.shared_output import SharedOutput
from runtime.settings import load_settings


def test_an_interrupt_that_begins_before_the_run_ends_it_as_it_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[str] = []

    async def begin(*arguments: Any) -> Any:
        begun.append("an actor was made")

    monkeypatch.setattr(controller_module, "begin", begin)

    async def scenario() -> None:
        start = Start(8, 0, Origin("run", {}, {}), None)
        plan = RunPlan(load_settings(None), Names("run", "tests"), tmp_path, tmp_path, start)
        controller = Controller(plan, SharedOutput(tmp_path, "token"))
        await controller.interrupt()
        with pytest.raises(InterruptedAtStart):
            [told async for told in controller.run()]

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert begun == []
