"""Commands that run in the tests' own process leave no folder of a user's in its path."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _path_as_before() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before
