"""One Ray session and one model for all tests of a file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.launch.ray_session import ray_session
from tests.runtime.ray.helpers import made_model, settings_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    with ray_session(settings_of({}, steps=1)):
        yield
