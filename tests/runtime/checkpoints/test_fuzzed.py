"""Item 9 of bad input: corrupted checkpoints are torn, refused or unchanged. More seeds: `make fuzz-checkpoints`."""

from pathlib import Path

import pytest

from tests.runtime.checkpoints.fuzz import Sound, fuzzed, sound_run

SEEDS = range(100)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    return sound_run(tmp_path_factory.mktemp("sound") / "run")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_corrupted_checkpoint_is_passed_over_refused_or_unchanged(seed: int, sound: Sound, tmp_path: Path) -> None:
    fuzzed(sound, tmp_path / "run", seed)
