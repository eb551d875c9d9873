import pytest

from tests.runtime.training.helpers import save_tiny_gpt2


@pytest.fixture(scope="session")
def tiny_gpt2(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny_gpt2(tmp_path_factory.mktemp("tiny_gpt2"))
