from __future__ import annotations

import pytest
from hostile.tiny import write_tiny

from glassloop import LLM


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny(tiny_path):
    with LLM(tiny_path, kv_memory="16MB") as made:
        yield made
