from __future__ import annotations

from pathlib import Path

import pytest
from model.wheelhouse import point_pip


@pytest.fixture
def wheelhouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PyPI."""
    folder = tmp_path / "wheelhouse"
    folder.mkdir()
    point_pip(monkeypatch, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(folder))
    return folder
