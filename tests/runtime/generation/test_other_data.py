"""C3: what a generation worker samples for the prompts of data that a run went on with."""

import asyncio
from typing import cast

from fsm.events import Attempt
from runtime.actors.policy_host import PolicyHost
from runtime.generation.engine import Engine
from runtime.models.text import make_codec
from runtime.models.tiny import character_tokenizer
from runtime.settings import load_settings
from runtime.transport.answers import Order


def test_the_first_prompt_of_other_data_is_its_first_item_under_the_number_that_the_run_gives_it() -> None:
    settings = load_settings(None, ["data.num_prompts=64", "data.validation_size=0"])
    codec = make_codec(character_tokenizer(), settings.data)
    unused = cast(Engine, object())  # nothing is sampled
    indices = {}
    for first in (0, 60):
        host = PolicyHost(settings, unused, codec, first)
        orders = [Order(Attempt(first + at, dispatch=at), start_weight=-1) for at in (0, 5)]
        jobs = list(map(host._job, orders, asyncio.run(host.encode(orders))))
        indices[first] = [(job.prompt - first, job.index) for job in jobs]
    assert indices[0] == indices[60] == [(0, 0), (5, 5)]
