"""The registry: what a name stands for, where it lives, what is there and how it goes away. No network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model.wheelhouse import put

from glassloop.errors import RegistryError
from glassloop.model import registry
from glassloop.model.registry.catalog import CATALOG, DEFAULT_MODEL
from glassloop.model.registry.disk import home, models_folder, size_text
from glassloop.model.registry.names import HubName, resolve, slug


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLASSLOOP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


# ---- names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("owner/repo", HubName("owner", "repo")),
        ("hf:owner/repo", HubName("owner", "repo")),
        ("owner/repo@v1.0", HubName("owner", "repo", "v1.0")),
        ("owner/repo@refs/pr/1", HubName("owner", "repo", "refs/pr/1")),
        ("owner/repo:a-Q4_K.gguf", HubName("owner", "repo", None, "a-Q4_K.gguf")),
        ("hf:Qwen/Qwen3-0.6B-GGUF@main:sub/x.gguf", HubName("Qwen", "Qwen3-0.6B-GGUF", "main", "sub/x.gguf")),
    ],
)
def test_a_name_with_one_slash_is_a_repository(name: str, expected: HubName) -> None:
    assert resolve(name) == expected
    assert resolve(str(expected)) == expected
    assert models_folder(slug(expected)).parent == home() / "models"


@pytest.mark.parametrize(
    "name", ["./x", "../x", "/nowhere/x", "~/nowhere/x", "x.gguf", "models/x.gguf", "a/b/c", "..", "a\\b"]
)
def test_a_path_that_is_not_there_is_called_a_path(name: str) -> None:
    if name == "..":
        assert resolve(name) == Path("..")  # a folder like any other
        return
    with pytest.raises(RegistryError, match="no such file or folder"):
        registry.find(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "smolm2-135m-instruct",
            r"unknown model 'smolm2-135m-instruct'; did you mean 'smollm2-135m-instruct'\? ",
        ),
        ("SmolLM2-135M-Instruct", r"did you mean 'smollm2-135m-instruct'\?"),
        ("gemma", r"did you mean 'gemma-3-270m'\?"),
        ("cl100k", r"did you mean 'cl100k_base'\?"),
        ("llama", r"unknown model 'llama'; expected a known name, .*'glassloop models list' shows all"),
        ("", "must be printable text"),
        ("a\nb", r"must be printable text, not 'a\\nb'"),
        ("a\0b", "must be printable text"),
        ("x" * 5000, "unknown model"),
        ("hf:repo", "not of the form hf:owner/repo"),
        ("a--b/c", "cannot be a Hugging Face repository"),
        ("owner/repo:weights.bin", "only a .gguf file can be picked"),
        ("owner/repo:../x.gguf", "not a path inside a repository"),
    ],
)
def test_a_name_that_is_nothing_is_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(RegistryError, match=message) as caught:
        registry.fetch(name)
    assert "\n" not in str(caught.value)


def test_what_exists_on_disk_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "owner" / "repo").mkdir(parents=True)
    (tmp_path / "x.gguf").write_bytes(b"")
    assert registry.fetch("owner/repo") == Path("owner/repo")
    assert registry.fetch(str(tmp_path / "x.gguf")) == tmp_path / "x.gguf"
    assert resolve("hf:owner/repo") == HubName("owner", "repo")


def test_a_known_name_is_not_taken_over_by_a_file_that_happens_to_lie_here(tmp_path: Path) -> None:
    (tmp_path / DEFAULT_MODEL).write_bytes(b"")
    assert resolve(DEFAULT_MODEL) is CATALOG[DEFAULT_MODEL]
    assert resolve(f"./{DEFAULT_MODEL}") == Path(DEFAULT_MODEL)


@given(st.text(max_size=40) | st.from_regex(r"[./@:a-z%+~-]{1,30}", fullmatch=True))
def test_no_name_leaves_the_cache(name: str) -> None:
    try:
        source = resolve(name)
    except RegistryError:
        return
    if not isinstance(source, Path):
        folder = models_folder(slug(source))
        assert folder.parent == home() / "models"
        assert folder.name not in ("", ".", "..")


_PART = st.from_regex(r"[a-z0-9]([._-]?[a-z0-9])*", fullmatch=True)
_NAMES = st.builds(
    HubName,
    _PART,
    _PART,
    st.none() | st.from_regex(r"[a-z0-9/+_.-]{1,12}", fullmatch=True),
    st.none() | st.from_regex(r"[a-z0-9/+@_-]{1,12}\.gguf", fullmatch=True),
)


@given(_NAMES, _NAMES)
def test_two_names_share_a_folder_only_if_they_are_equal(one: HubName, other: HubName) -> None:
    assert (slug(one) == slug(other)) == (one == other)
    assert slug(one) not in CATALOG


# ---- places


def test_home_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GLASSLOOP_HOME", "here")
    assert home() == tmp_path / "here"
    monkeypatch.setenv("GLASSLOOP_HOME", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert home() == tmp_path / "xdg" / "glassloop"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert home() == Path.home() / ".cache" / "glassloop"


# ---- what is there


def test_an_empty_cache_has_nothing_and_is_not_made_by_looking(cache: Path) -> None:
    assert registry.installed() == []
    assert registry.find(DEFAULT_MODEL) is None
    assert not cache.exists()


def test_a_stored_file_is_found_and_listed(cache: Path) -> None:
    path = put(cache, "cl100k_base")
    assert registry.find("cl100k_base") == registry.fetch("cl100k_base") == path
    (item,) = registry.installed()
    assert (item.name, item.kind, item.path, item.size) == ("cl100k_base", "tokenizer", path, 1_681_126)


def test_a_truncated_file_is_an_error_that_says_what_to_do(cache: Path) -> None:
    put(cache, "cl100k_base", missing=1)
    message = r"has 1,681,125 bytes, expected 1,681,126: .*'glassloop models pull cl100k_base --force'"
    with pytest.raises(RegistryError, match=message):
        registry.fetch("cl100k_base")
    with pytest.raises(RegistryError, match=message):
        registry.verify("cl100k_base")
    (item,) = registry.installed()
    assert "has 1,681,125 bytes" in item.problem


def test_changed_bytes_are_found_by_verify(cache: Path) -> None:
    put(cache, "cl100k_base")  # the right size, all zeros
    with pytest.raises(RegistryError, match=r"has SHA-256 [0-9a-f]{64}, expected 223921b7.*--force"):
        registry.verify("cl100k_base")


def test_what_somebody_else_put_there_is_listed_as_unknown_and_can_be_removed(cache: Path) -> None:
    (cache / "models/mine").mkdir(parents=True)
    (cache / "models/mine/x.gguf").write_bytes(b"123")
    (item,) = registry.installed()
    assert (item.name, item.kind, item.size) == ("mine", "unknown", 3)
    assert registry.remove("mine") == 3
    assert registry.installed() == []


# ---- going away


def test_remove_takes_one_name_and_says_how_much(cache: Path) -> None:
    put(cache, "cl100k_base")
    kept = put(cache, "o200k_base")
    assert registry.remove("cl100k_base") == 1_681_126
    assert [item.path for item in registry.installed()] == [kept]
    with pytest.raises(RegistryError, match="'cl100k_base' is not in the cache"):
        registry.remove("cl100k_base")


def test_remove_never_touches_what_is_outside_the_cache(cache: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep me")
    (cache / "models").mkdir(parents=True)
    for name in ("precious", "./precious", str(precious), "../precious", "../../precious"):
        with pytest.raises(RegistryError):
            registry.remove(name)
    (cache / "models/cl100k_base").symlink_to(precious)
    registry.remove("cl100k_base")
    assert not (cache / "models/cl100k_base").is_symlink()
    assert (precious / "file").read_text() == "keep me"


# ---- weight


def test_importing_the_registry_imports_nothing_heavy() -> None:
    code = "import sys, glassloop.model.registry as r; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"numpy", "rich", "huggingface_hub", "tokenizers", "filelock", "typer"} & set(modules)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (98_362_432, "98.4 MB"), (999_960_000, "1.00 GB")],
)
def test_sizes_are_for_people(size: int, text: str) -> None:
    assert size_text(size) == text
