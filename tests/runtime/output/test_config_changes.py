"""The configuration in a run's directory: it loads as what the run had, and differences from it are listed."""

from pathlib import Path

import pytest

from runtime.output.directory import CONFIG, config_changes, write_config
from runtime.settings import load_settings

EXAMPLES = sorted(Path("examples").glob("*.yaml"))


@pytest.mark.parametrize("example", [None, *EXAMPLES], ids=lambda path: path.stem if path else "default run")
def test_the_written_configuration_loads_as_what_the_run_had(example: Path | None, tmp_path: Path) -> None:
    settings = load_settings(example)
    write_config(tmp_path, settings)
    assert load_settings(tmp_path / CONFIG) == settings
    assert config_changes(tmp_path, settings) == []


def test_every_key_that_differs_is_listed_with_both_values(tmp_path: Path) -> None:
    write_config(tmp_path, load_settings(None))
    changed = load_settings(None, ["optimizer.lr=1e-5", "async_rl.sampler={name: windowed, max_staleness_versions: 2}"])
    said = config_changes(tmp_path, changed)
    assert any(line.startswith("optimizer.lr ") and line.endswith("→ 1e-05") for line in said)
    assert 'async_rl.sampler.name "ready_first" → "windowed"' in said
    assert "async_rl.sampler.max_staleness_versions 1 → 2" in said


def test_a_configuration_of_another_version_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text("grpo: {max_num_stops: 3}\n", encoding="utf-8")
    [line] = config_changes(tmp_path, load_settings(None))
    assert line.startswith("config.yaml cannot be compared: ")
    assert "max_num_stops" in line


def test_a_directory_without_a_configuration_has_no_changes(tmp_path: Path) -> None:
    assert config_changes(tmp_path, load_settings(None)) == []
