"""What a file or a model says is shown and never obeyed, and a file decides neither what is downloaded nor
what is opened."""

from __future__ import annotations

import io
import os
import sys
import unicodedata
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace

import pytest
from engine.random_runs import PROMPT, small_llm
from hostile import glass
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import Run, Sampling, Store, TraceError
from glassloop.cli import diff, main, models, runs
from glassloop.cli.run_model import model_of
from glassloop.cli.terminal import print_table, quoted, visible, working
from glassloop.cli.tokenize import shown
from glassloop.record.format.glass_file import to_bytes

STEERING = ["\x1b[2J", "\x1b]0;owned\x07", "\r", "\x7f", "\x9b31m", "\x85", "\u202e", "\u2066", "\u200f"]
STEERING += ["\u2028", "\u2029", "\u200b", "\ufeff", "\U000e0041", "\x00", "\x08", "\udc9b", "\u061c", "\xad"]
TEXTS = st.lists(st.sampled_from(STEERING) | st.characters(), max_size=12).map("".join)


def obeyed(text: str) -> list[str]:
    """Characters of a text that control a terminal, or that cannot be seen."""
    return [
        character
        for character in text
        if (unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") and character not in "\n\t")
        or unicodedata.bidirectional(character) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "PDI")
        or character in "\u200b\u200e\u200f\u061c\ufeff\U000e0041"
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module", autouse=True)
def plain(tmp_path_factory):
    """A terminal without styles, so that any escape is the text's; and a separate store."""
    before = dict(os.environ)
    os.environ.update(TERM="dumb", NO_COLOR="1", COLUMNS="100")
    os.environ["GLASSLOOP_STORE"] = str(tmp_path_factory.mktemp("hostile") / "runs.db")
    yield
    os.environ.clear()
    os.environ.update(before)


def said(stream: io.StringIO, function, *arguments, **options) -> str:
    """All that a command writes to stdout and stderr."""
    with redirect_stdout(stream), redirect_stderr(stream):
        function(*arguments, **options)
    return stream.getvalue()


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXTS, min_size=6, max_size=6), stream=st.sampled_from([io.StringIO, Terminal]))
def test_no_text_of_a_run_is_obeyed(tmp_path_factory, texts, stream):
    run = hostile(texts)
    path = tmp_path_factory.mktemp("run") / "a.glass"
    run.save(path)
    store = Store()
    store.prune(0)
    store.add(Run.load(path))
    name = str(path)
    for shown_text in (
        said(stream(), runs.show, name, as_json=False),
        said(stream(), runs.show, name, as_json=True),
        said(stream(), runs.list_runs, 5, as_json=False),
        said(stream(), runs.list_runs, 5, as_json=True),
        said(stream(), runs.worst, name, 5, as_json=False),
        said(stream(), runs.worst, name, 5, as_json=True),
        said(stream(), runs.export, name, path.with_suffix(".csv"), tree=True, as_json=False),
        said(stream(), runs.import_runs, path, as_json=False),
        said(stream(), diff.diff, name, run.id, as_json=False),
        said(stream(), runs.export, name, path.with_suffix(".json"), tree=True, as_json=False),
    ):
        assert not obeyed(shown_text), ascii(shown_text)


def hostile(texts: list[str]) -> Run:
    made = small_llm().generate(PROMPT, Sampling(seed=1, max_tokens=3, ignore_eos=True))
    run = Run(**{**vars(made), "samples": [], "children": []})
    run.prompt, run.model, run.ops, run.tail, run.stop_reason, words = texts
    words = words.encode("utf-8", "replace").decode().replace("?", "x") or "x"
    run.sampling = replace(run.sampling, stop=(words,), grammar=words, ignore_eos=False)
    for token in run.tokens:
        token.text, token._pieces = words, lambda id: f"{words}{id}"
    return run


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, stream=st.sampled_from([io.StringIO, Terminal]))
def test_no_function_that_shows_a_text_lets_it_be_obeyed(text, stream):
    assert not obeyed(visible(text)) and not obeyed(quoted(text)) and not obeyed(shown(text))
    assert "\n" not in visible(text, newlines=False) and visible(visible(text)) == visible(text)
    told = said(stream(), print_table, (text, "x"), [(text, text)], right=(text,), fold=("x",))
    told += said(stream(), print_table, ("x",), [(text,)], cut=("x",), styles={text: "bold"})
    told += said(stream(), models._print_facts, {"name": text, "sha256": {text: text}, "a": [text]})
    assert not obeyed(told)
    with redirect_stderr(stream()) as error, working(text):
        waiting = error.getvalue()
    assert not obeyed(waiting)


@settings(max_examples=50, deadline=None)
@given(text=TEXTS)
def test_an_error_is_one_line_whatever_it_quotes(text):
    arguments, stream = sys.argv, io.StringIO()
    sys.argv = ["glassloop", "runs", "show", f"{text.replace(chr(0), '')}.glass"]
    try:
        with redirect_stderr(stream), redirect_stdout(stream), pytest.raises(SystemExit) as ended:
            main.main()
    finally:
        sys.argv = arguments
    assert ended.value.code == 2 and not obeyed(stream.getvalue()) and stream.getvalue().count("\n") == 1


@pytest.fixture
def file(tmp_path):
    data = to_bytes([small_llm().generate(PROMPT, Sampling(seed=1, max_tokens=2))])
    header = glass.read(data)[0].header

    def write(**fields) -> str:
        path = tmp_path / "a.glass"
        path.write_bytes(glass.with_headers(data, {**header, **fields}))
        return str(path)

    return write


@pytest.mark.parametrize("command", [["replay"], ["explain"], ["fork", "--at", "1"], ["lens", "layers"]])
@pytest.mark.parametrize("model", ["/etc/passwd", "hf:evil-owner/evil-repo", "owner/repo", "./here.gguf", ""])
def test_a_file_does_not_choose_what_is_downloaded_or_opened(
    file, command, model, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.gguf").touch()
    (tmp_path / "owner" / "repo").mkdir(parents=True)
    monkeypatch.setattr("glassloop.cli.loading.load", lambda *_: pytest.fail("it was opened"))
    monkeypatch.setattr(sys, "argv", ["glassloop", *command, file(model=model)])
    with pytest.raises(SystemExit) as ended:
        main.main()
    told = capsys.readouterr()
    assert ended.value.code == 2 and not told.out
    assert told.err.count("\n") == 1 and "--model NAME" in told.err


def test_the_model_of_a_run_of_ones_own_is_used_and_that_of_a_server_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSLOOP_STORE", str(tmp_path / "runs.db"))
    run = small_llm().generate(PROMPT, Sampling(max_tokens=2))
    run.model = "./mine.gguf"
    Store().add(run)
    assert model_of(run.id, run) == model_of("last", run) == "./mine.gguf"
    served = small_llm().generate(PROMPT, Sampling(max_tokens=2))
    served.model = "./mine.gguf"
    Store(origin="server").add(served)
    Store().add(served)  # written again by the terminal, it stays a server's
    with pytest.raises(TraceError, match="--model NAME"):
        model_of("last", served)
    served.model = "smollm2-135m-instruct"
    assert model_of("last", served) == served.model


@pytest.mark.parametrize(
    "fields", [{"prompt_ids": [-(2**30)]}, {"prompt_ids": []}, {"sampling": []}, {"tail": 5}, {"beams": {}}]
)
def test_wrong_types_are_one_line(file, fields, monkeypatch, capsys):
    for command in (["runs", "show"], ["replay"], ["explain"]):
        monkeypatch.setattr(sys, "argv", ["glassloop", *command, file(**fields)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        told = capsys.readouterr()
        assert ended.value.code == 2 and not told.out
        assert told.err.count("\n") == 1 and next(iter(fields)) in told.err
