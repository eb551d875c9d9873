"""The example configurations are valid, and the one of the default run is the default run."""

from pathlib import Path

import pytest

from fsm.config.setup import set_up
from runtime.settings import load_settings

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_accepted_with_its_sampler(path):
    settings = load_settings(path)

    assert set_up(settings, num_prompts=1000).limits.size == settings.grpo.num_prompts_per_step


def test_the_default_run_is_written_out_in_full():
    [default] = [path for path in EXAMPLES if path.stem == "default"]

    assert load_settings(default) == load_settings(None)
