from __future__ import annotations

import pytest
from hostile.tiny import write_tiny

from glassloop import LLM
from glassloop.engine.integrity import check


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny(tiny_path):
    with LLM(tiny_path, kv_memory="16MB") as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_is_held(request):
    """After each test no path holds a page, and the KV tree is sound."""
    yield
    if "tiny" in request.fixturenames:
        engine = request.getfixturevalue("tiny").engine

        def look() -> None:
            assert not engine.loop.busy and not engine.loop.tree.paths and not engine.loop.tree.held
            check(engine.loop.tree)

        engine.call(look)
