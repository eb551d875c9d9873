"""What holds for every session of tests."""

from tests.started import mark_session


def pytest_configure() -> None:
    mark_session()
