"""Models from Hugging Face: the real client against a small hub on loopback.

What is promised: safetensors or GGUF and what belongs to them, never a pickle; nothing in the cache that
differs from what the hub says; no network for what is already here.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model.fake_hub import COMMIT, FakeHub
from model.wheelhouse import files_below
from waiting import awake

from glassloop.errors import RegistryError
from glassloop.model import registry
from glassloop.model.fingerprint import fingerprint
from glassloop.model.registry.hub_files import choose
from glassloop.model.registry.names import HubName
from glassloop.util.files import sha256_of

# The client reads HF_ENDPOINT when it is imported, so each call has a process of its own.
DRIVER = """
import sys
from glassloop.errors import GlassloopError
from glassloop.model import registry
try:
    print(registry.pull(sys.argv[1], force="--force" in sys.argv))
except GlassloopError as error:
    sys.exit(f"glassloop: {error}")
"""
WEIGHTS = bytes(range(256)) * 40
LLAMA = {
    "config.json": b"{}",
    "generation_config.json": b"{}",
    "tokenizer.json": b'{"a": 1}',
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": WEIGHTS,
    "LICENSE": b"do what you like",
    # What must not be fetched:
    "pytorch_model.bin": b"pickle" * 1000,
    "training_args.bin": b"pickle",
    "consolidated.safetensors": WEIGHTS,
    "model-Q4.gguf": WEIGHTS,
    "onnx/model.onnx": b"onnx",
    "README.md": b"# A model",
    ".gitattributes": b"",
}
TAKEN = {
    "LICENSE",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLASSLOOP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    repos = {
        "lab/llama": dict(LLAMA),
        "lab/one-gguf": {"sub/only.gguf": WEIGHTS, "README.md": b"x"},
        "lab/many-gguf": {"a-Q4.gguf": WEIGHTS, "a-Q8.gguf": WEIGHTS[::-1], "mmproj.bin": b"x"},
        "lab/pickled": {"pytorch_model.bin": b"pickle", "config.json": b"{}", "tokenizer.json": b"{}"},
    }
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with FakeHub(repos).running() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", DRIVER, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def pull(*arguments: str) -> Path:
    process = start(*arguments)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert len(err.splitlines()) == 2, err  # a line before, a line after
    return Path(out.strip())


def refused(*arguments: str) -> str:
    process = start(*arguments)
    out, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert out == ""
    return err.splitlines()[-1]


def test_a_repository_is_its_safetensors_and_what_belongs_to_them_and_never_a_pickle(
    hub: FakeHub, cache: Path
) -> None:
    path = pull("lab/llama")
    assert path == cache / "models/lab--llama"
    assert {file.name for file in path.iterdir()} == TAKEN | {"glassloop.json"}
    assert set(hub.sent) == TAKEN
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert files_below(cache) == {f"models/lab--llama/{name}" for name in TAKEN | {"glassloop.json"}}

    (item,) = registry.installed()
    assert (item.name, item.kind, item.licence, item.problem) == ("lab/llama", "model", "mit", "")
    assert COMMIT[:12] in item.source
    assert registry.verify("hf:lab/llama").path == path


def test_what_is_here_needs_no_network(hub: FakeHub) -> None:
    path = pull("lab/llama")
    hub.repos.clear()
    assert registry.find("lab/llama") == registry.fetch("hf:lab/llama") == path
    assert registry.find("lab/llama@v1") is None


def test_a_revision_and_a_file_have_places_of_their_own(hub: FakeHub, cache: Path) -> None:
    assert pull("lab/llama@v1") == cache / "models/lab--llama@v1"
    assert pull("hf:lab/many-gguf:a-Q8.gguf").read_bytes() == WEIGHTS[::-1]
    assert pull("lab/one-gguf").name == "only.gguf"
    names = ["lab/llama@v1", "lab/many-gguf:a-Q8.gguf", "lab/one-gguf"]
    assert [item.name for item in registry.installed()] == names
    for name in names:
        assert registry.find(name) is not None
        registry.remove(name)
    assert files_below(cache) == set()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lab/many-gguf", "has 2 GGUF files; pick one as lab/many-gguf:FILE: a-Q4.gguf, a-Q8.gguf"),
        ("lab/many-gguf:a-Q5.gguf", "has no file 'a-Q5.gguf': a-Q4.gguf, a-Q8.gguf"),
        ("lab/pickled", "only in a form that glassloop never loads (pytorch_model.bin)"),
        ("lab/nothing", "'lab/nothing' is neither a path here nor a repository on Hugging Face"),
        ("lab/gated", "is gated: accept its terms at https://huggingface.co/lab/gated and set HF_TOKEN"),
        ("lab/llama@v9", "has no revision 'v9'"),
    ],
)
def test_what_cannot_be_pulled_is_refused_in_one_line(
    hub: FakeHub, cache: Path, name: str, message: str
) -> None:
    assert message in refused(name)
    assert files_below(cache) == set()
    assert hub.sent == []


def test_a_file_that_is_not_what_the_hub_says_is_not_stored(hub: FakeHub, cache: Path) -> None:
    hub.lies["model.safetensors"] = WEIGHTS[::-1]
    assert "model.safetensors does not have the checksum that Hugging Face lists" in refused("lab/llama")
    assert registry.find("lab/llama") is None
    assert registry.remove("lab/llama") > 0  # the verified files that were kept for another try
    hub.lies = {"config.json": b"[]"}
    assert "config.json does not have the checksum that Hugging Face lists" in refused("lab/llama")
    assert registry.find("lab/llama") is None


def test_a_stopped_pull_goes_on_where_it_stood(hub: FakeHub, cache: Path) -> None:
    hub.stop_at = "model.safetensors"
    process = start("lab/llama")
    assert hub.held.wait(120)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert registry.find("lab/llama") is None
    kept = {file for file in files_below(cache) if "/.cache/" not in file}
    assert kept == {f"staging/lab--llama/{name}" for name in TAKEN - {"model.safetensors"}}
    hub.go_on.set()
    assert pull("lab/llama").is_dir()
    assert sorted(hub.sent) == sorted([*TAKEN, "model.safetensors"])
    assert files_below(cache) == {f"models/lab--llama/{name}" for name in TAKEN | {"glassloop.json"}}


def test_what_the_clients_own_cache_has_is_not_downloaded_again(hub: FakeHub) -> None:
    code = "from huggingface_hub import hf_hub_download as get; get('lab/llama', 'model.safetensors')"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert (pull("lab/llama") / "model.safetensors").read_bytes() == WEIGHTS
    assert sorted(hub.sent) == sorted(TAKEN)


def test_what_an_interrupted_pull_of_another_commit_left_is_not_stored(hub: FakeHub, cache: Path) -> None:
    old = cache / "staging/lab--llama/old.json"
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    (old.parent / "config.json").write_text("changed")
    path = pull("lab/llama")
    assert {file.name for file in path.iterdir()} == TAKEN | {"glassloop.json"}
    assert (path / "config.json").read_bytes() == LLAMA["config.json"]


def test_force_replaces_what_was_there(hub: FakeHub) -> None:
    path = pull("lab/llama")
    (path / "model.safetensors").write_bytes(b"")
    with pytest.raises(RegistryError, match=r"model.safetensors has 0 bytes, expected 10,240.*--force"):
        registry.find("lab/llama")
    hub.repos["lab/llama"]["tokenizer.json"] = b"new"
    assert pull("lab/llama", "--force") == path
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert (path / "tokenizer.json").read_bytes() == b"new"


def test_a_changed_byte_is_found_by_verify(hub: FakeHub) -> None:
    path = pull("lab/llama")
    (path / "model.safetensors").write_bytes(WEIGHTS[::-1])
    assert registry.find("lab/llama") == path  # the size is right, and that is all that is checked each time
    with pytest.raises(RegistryError, match=r"model.safetensors has SHA-256 .*--force"):
        registry.verify("lab/llama")


def test_a_damaged_manifest_is_said_and_can_be_removed(hub: FakeHub, cache: Path) -> None:
    path = pull("lab/llama")
    (path / "glassloop.json").write_text('{"name": 3')
    with pytest.raises(RegistryError, match=r"glassloop.json is damaged"):
        registry.find("lab/llama")
    assert [item.kind for item in registry.installed()] == ["unknown"]
    assert registry.remove("lab/llama") > len(WEIGHTS)
    assert files_below(cache) == set()


@pytest.mark.parametrize("offline", [False, True], ids=["no network", "HF_HUB_OFFLINE"])
def test_without_a_network_the_answer_comes_soon(
    cache: Path, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    if offline:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    begin = awake()
    assert ("HF_HUB_OFFLINE forbids" if offline else "Hugging Face does not answer") in refused("lab/llama")
    assert awake() - begin < 60
    assert files_below(cache) == set()


def test_the_manifest_says_what_each_file_is(hub: FakeHub) -> None:
    path = pull("lab/one-gguf")
    facts = json.loads((path.parent.parent / "glassloop.json").read_text())
    sha256 = sha256_of(path)
    assert facts["files"] == [{"name": "sub/only.gguf", "size": len(WEIGHTS), "sha256": sha256}]
    assert (facts["commit"], facts["main"]) == (COMMIT, "sub/only.gguf")
    assert fingerprint(path) == sha256


_ENDS = ["safetensors", "gguf", "json", "bin", "pt", "pkl", "BIN", "jinja", "txt", "md"]
_FILES = st.lists(
    st.builds(
        "{}{}.{}".format,
        st.sampled_from(["", "sub/", "../", "/", ".cache/"]),
        st.sampled_from(["model", "LICENSE", "tokenizer", "model-00001-of-00002", "glassloop", "a"]),
        st.sampled_from(_ENDS),
    ),
    unique=True,
)


@given(files=_FILES)
def test_no_choice_ever_holds_a_pickle_or_a_name_that_leaves_the_folder(files: list[str]) -> None:
    try:
        choice = choose(HubName("lab", "any"), files)
    except RegistryError:
        return
    assert set(choice.files) <= set(files)
    stored = [Path(file).name for file in choice.files]
    assert len({*stored, "glassloop.json"}) == len(stored) + 1, "two files would get the same name"
    for file in choice.files:
        assert not file.lower().endswith((".bin", ".pt", ".pkl"))
        assert not file.startswith(("..", "/", "."))
        assert "/" not in file or file == choice.main
    if choice.main:
        assert not any(file.endswith(".safetensors") for file in files if "/" not in file)


def test_all_parts_of_a_gguf_model_are_chosen():
    parts = [f"q4/m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    for named in (None, parts[0], parts[2]):
        choice = choose(HubName("lab", "any", file=named), [*parts, "README.md"])
        assert {*parts} <= {*choice.files} and choice.main == (named or parts[0])
    with pytest.raises(RegistryError, match="does not have all 3 parts"):
        choose(HubName("lab", "any", file=parts[0]), parts[:2])
