"""A whole run on Ray whose groups travel through TransferQueue (an extra)."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.runtime.ray.helpers import ON_POLICY, metrics_of, run, settings_of


@pytest.mark.skipif(find_spec("transfer_queue") is None, reason="TransferQueue is not installed (an extra)")
def test_groups_come_through_transfer_queue_unchanged(model: Path, tmp_path: Path) -> None:
    losses = []
    for plane in ("object_store", "transfer_queue"):
        outcome = run(settings_of({**ON_POLICY, "data_plane.name": plane}, steps=3), model, tmp_path / plane)
        assert outcome.status == "completed", outcome.error
        losses.append([record["loss"] for record in metrics_of(tmp_path / plane)])
    assert losses[0] == losses[1]
