from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def nothing_is_held(request):
    """After each test no path holds a page, and the KV tree is sound."""
    yield
    if "tiny" in request.fixturenames:
        engine = request.getfixturevalue("tiny").engine

        def look() -> None:
            assert not engine.loop.busy and not engine.loop.tree.paths and not engine.loop.tree.held
            engine.loop.tree.check_integrity()

        engine.call(look)
