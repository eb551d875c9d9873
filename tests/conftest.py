"""Which tests run beside each other (`pytest -n 2 --dist loadgroup`, as in `make test`)."""

from pathlib import Path

import pytest

from tests.started import mark_session

RUNS_ON_RAY = (
    "chaos",
    "docs/test_data_set_documents.py",
    "docs/test_runs_as_shown.py",
    "examples",
    "runtime/cluster",
    "runtime/ends",
    "runtime/launch/test_ray_session.py",
    "runtime/ray",
    "runtime/transport/test_transfer_queue.py",
)
"""Tests that start Ray, which takes two cores for a moment: one after the other, beside all that need one core."""


def pytest_configure() -> None:
    mark_session()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(tests).as_posix()
        if place.startswith(RUNS_ON_RAY):
            item.add_marker(pytest.mark.xdist_group("ray"))
