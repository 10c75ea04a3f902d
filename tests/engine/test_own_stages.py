"""Stages of a user's own, as docs/decoding.md describes them."""

from __future__ import annotations

import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from engine.random_runs import PROMPT, small_llm

import glassloop
from glassloop import Candidates, GlassloopError, Run, Sampling, SamplingError, Step, load_plugin
from glassloop.decode.chain import DEFAULT_ORDER, build_chain
from glassloop.decode.history import History
from glassloop.decode.past_choices import PastChoices
from glassloop.decode.stage import REGISTER

SECTION = (
    (Path(__file__).parents[2] / "docs" / "decoding.md")
    .read_text(encoding="utf-8")
    .split("\n## Your own order and your own stages\n")[1]
    .split("\n## ")[0]
)


BLOCKS = re.findall(r"^```(?:python)?\n(.*?)^```", SECTION, re.S | re.M)
PLUGIN = next(code for code in BLOCKS if "@stage(" in code)  # the whole file of the document
ANY_STAGE = """
from glassloop import stage

@stage("only_letter", kind="mask")
def only_letter(candidates, step, *, letter: str = "a"):
    return candidates.without([id for id in range(candidates.vocab_size) if id != ord(letter)])
"""


@pytest.fixture(autouse=True)
def no_stage_stays_registered():
    before = dict(REGISTER)
    yield
    REGISTER.clear()
    REGISTER.update(before)


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "letters.py"
    path.write_text(ANY_STAGE)
    return path


def only(letter: str | None = None, **options) -> Sampling:
    """Options with which an answer consists of one letter."""
    given = {} if letter is None else {"only_letter": {"letter": letter}}
    return Sampling(
        **{"stages": ["default", "only_letter"], "stage_options": given, "max_tokens": 4, **options}
    )


def test_the_example_of_the_document_does_what_it_says(capsys, tmp_path, monkeypatch):
    (tmp_path / "my_stages.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    program = next(code for code in BLOCKS if 'load_plugin("my_stages.py")' in code)
    names: dict = {}
    exec(compile(program, "docs/decoding.md", "exec"), names)
    run, llm = names["run"], names["llm"]
    assert "new_opening" in capsys.readouterr().out
    pieces = [token.piece for token in run.tokens]
    starts = [0] + [place + 1 for place, text in enumerate(pieces) if text.endswith((".", "!", "?"))]
    openings = [run.token_ids[place] for place in starts if place < len(pieces)]
    assert len(openings) >= 3 and len(set(openings)) == len(openings)
    plain = llm.generate("My sister has a cat.", Sampling(temperature=0, max_tokens=60))
    first = next(
        place
        for place, ids in enumerate(zip(run.token_ids, plain.token_ids, strict=False))
        if len(set(ids)) > 1
    )
    assert first in starts and "removed by new_opening" in str(run.explain(first))
    assert run.replay().identical
    assert run.plugins == {"new_opening": ("my_stages.py", sha256(PLUGIN.encode()).hexdigest())}
    assert "because stage new_opening was added" in glassloop.diff(plain, run).sentence


@pytest.mark.parametrize(
    ("title", "kind"),
    [("Step", Step), ("History", History), ("PastChoices", PastChoices), ("Candidates", Candidates)],
)
def test_every_name_of_the_reference_exists(title, kind):
    table = SECTION.split(f"### `{title}`\n")[1].split("\n### ")[0]
    cells = re.findall(r"^\| (`[^|]*`) \|", table, re.M)
    names = [name for cell in cells for name in re.findall(r"`(\w+)", cell)]
    known = set(dir(kind)) | set(getattr(kind, "__annotations__", ()))
    if kind is History:
        known |= set(vars(History([1])))
    assert names and not set(names) - known


def test_a_stage_gets_the_tokenizer_of_the_model():
    seen = []

    @glassloop.stage("looks", kind="mask")
    def looks(candidates, step):
        seen.append(step.tokenizer.decode(step.history.tokens))
        return candidates

    options = Sampling(stages=[*glassloop.DEFAULT_ORDER, "looks"], max_tokens=2, ignore_eos=True)
    run = small_llm().generate(PROMPT, options)
    assert seen[0] == bytes(PROMPT).decode() and len(run.tokens) == 2


def test_the_name_of_a_built_in_stage_is_taken_whatever_was_imported_before():
    program = "import glassloop\n@glassloop.stage('top_k', kind='mask')\ndef mine(candidates, step): ..."
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "stage 'top_k' is built in; another name is expected" in done.stderr


# ── options of stages ──────────────────────────────────────────────────────────────────────────────────────


def test_each_request_of_a_batch_has_its_own_options(plugin):
    load_plugin(plugin)
    llm = small_llm()
    letters = ["a", "b", None, "c"] * 3
    runs = llm.generate([PROMPT] * 12, [only(letter) for letter in letters])
    assert [run.text for run in runs] == [(letter or "a") * 4 for letter in letters]
    assert llm.generate(PROMPT, only("b", n=2)).samples[1].text == "bbbb"
    assert llm.generate(PROMPT, only("b", beam_width=2)).text == "bbbb"
    assert all(run.replay().identical for run in runs[:4])


def test_options_are_in_the_record_and_a_what_if_replaces_them(plugin, tmp_path):
    load_plugin(plugin)
    llm = small_llm()
    llm.generate(PROMPT, only("b")).save(tmp_path / "b.glass")
    run = Run.load(tmp_path / "b.glass", llm=llm)
    assert run.sampling == only("b") and run.replay().identical
    assert run.explain(1).winner.text == "b"
    assert run.explain(1, stage_options={"only_letter": {"letter": "c"}}).winner.text == "c"
    assert [report.name for report in run.explain(1, stages=["default"]).stages] == []
    fork = run.fork(2, stage_options={})
    assert fork.text == "bbaa" and fork.replay().identical
    plain = run.fork(2, stages=None)
    assert plain.sampling.stage_options == {} and plain.plugins == {} and plain.replay().identical
    assert "stage_options" in glassloop.diff(run, fork).sentence


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"only_lettr": {}},
            "stage_options has 'only_lettr', which is not a stage; did you mean only",
        ),
        ({"top_k": {"k": 1}}, "stage_options has 'top_k', which is built in; its options are fields of Samp"),
        (
            {"only_letter": {"leter": "a"}},
            r"stage_options\.only_letter\.leter is not an option of the stage 'only_letter'; did you mean",
        ),
        (
            {"only_letter": {"letter": 3}},
            r"stage_options\.only_letter\.letter is 3; a text is expected",
        ),
    ],
)
def test_a_wrong_option_is_an_error_that_names_the_stage(plugin, options, said):
    load_plugin(plugin)
    with pytest.raises(SamplingError, match=said):
        small_llm().generate(PROMPT, Sampling(stages=["default", "only_letter"], stage_options=options))


def test_options_of_a_stage_that_does_not_run_are_an_error(plugin):
    load_plugin(plugin)
    with pytest.raises(SamplingError, match="'only_letter', which is not among the stages of this request"):
        small_llm().generate(PROMPT, Sampling(stage_options={"only_letter": {"letter": "a"}}))


def test_a_stage_without_options_takes_none_even_if_it_is_not_active():
    @glassloop.stage("plain", kind="mask", active=lambda sampling: False)
    def plain(candidates, step):
        return candidates

    options = Sampling(stages=["default", "plain"], stage_options={"plain": {"words": 3}})
    with pytest.raises(SamplingError, match="words is not an option of the stage 'plain'; it has no options"):
        small_llm().generate(PROMPT, options)


def test_default_stands_for_the_default_order():
    def chain(stages):
        return build_chain(Sampling(stages=stages, temperature=2, top_k=3, min_p=0.1), 300)

    assert chain(["default"]) == chain(None) == chain(DEFAULT_ORDER)
    with pytest.raises(SamplingError, match="'top_k' 2 times"):
        chain(["top_k", "default"])
    with pytest.raises(SamplingError, match="a text other than 'default'"):
        glassloop.stage("default", kind="mask")


# ── plugins ────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_its_plugin_a_run_can_be_read_and_the_error_says_what_to_load(plugin, tmp_path):
    made = load_plugin(plugin)
    llm = small_llm()
    first = llm.generate(PROMPT, only("b"))
    first.save(tmp_path / "b.glass")
    first.fork(2, stages=None).save(tmp_path / "plain.glass")
    del REGISTER["only_letter"]
    run = Run.load(tmp_path / "b.glass", llm=llm)
    assert run.plugins == {"only_letter": made} and run.text == "bbbb"
    said = (
        rf"'only_letter', which is not registered here; the run was made with plugin letters\.py"
        rf" \(sha256 {made.sha256[:12]}…\): pass --plugin letters\.py"
    )
    for ask in (run.replay, lambda: run.explain(1), lambda: run.fork(1), lambda: run.fork(1, n=2)):
        with pytest.raises(SamplingError, match=said):
            ask()
    assert run.explain(1, stages=["default"]).stages == ()  # does not need it
    plain = Run.load(tmp_path / "plain.glass", llm=llm)
    assert plain.explain(2).winner.id == plain.tokens[2].id
    with pytest.raises(SamplingError, match=said):  # its first tokens were drawn with the stage
        plain.replay()


def test_a_plugin_that_has_changed_is_reported_with_both_hashes(plugin, tmp_path):
    before = load_plugin(plugin)
    llm = small_llm()
    run = llm.generate(PROMPT, only("b"))
    fork = run.fork(2, stage_options={"only_letter": {"letter": "c"}})
    plugin.write_text(ANY_STAGE + "\n# another version\n")
    after = load_plugin(plugin)  # replaces its own stages
    note = f"made with plugin {before}, and here it is {after}"
    for old in (run, fork, run.fork(2, stages=None)):
        verdict = old.replay()
        assert verdict.identical and verdict.notes == (note,) and note in verdict.sentence
    told = run.explain(0)
    assert told.notes == (note,) and told.to_dict()["notes"] == [note]
    again = llm.generate(PROMPT, only("d"))
    assert again.replay().notes == () and again.explain(0).notes == ()
    assert any(cause.what == "plugin" for cause in glassloop.diff(run, again).causes)
    plugin.rename(tmp_path / "renamed.py")
    del REGISTER["only_letter"]
    load_plugin(tmp_path / "renamed.py")
    assert again.replay().notes == ()  # the same code by another name


def test_a_stage_of_a_module_has_the_hash_of_its_file_and_one_of_a_console_none(tmp_path):
    @glassloop.stage("here", kind="mask")
    def here(candidates, step):
        return candidates

    names: dict = {"stage": glassloop.stage}
    exec("@stage('console', kind='mask')\ndef console(candidates, step): return candidates", names)
    run = small_llm().generate(PROMPT, Sampling(stages=["default", "here", "console"], max_tokens=1))
    source = Path(__file__).read_bytes()
    assert run.plugins == {"here": ("test_own_stages.py", sha256(source).hexdigest())}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "x = 1",
            "registers no stage; a function with @stage or @verifier, or a class with @search_method",
        ),
        ("import glassloop\n1 / 0", "line 2: ZeroDivisionError: division by zero"),
        ("def f(:", "line 1: SyntaxError"),
        (b"\xff = 1", "SyntaxError"),
        (ANY_STAGE.replace("only_letter", "top_k"), "stage 'top_k' is built in; another name is expected"),
        (ANY_STAGE + "raise KeyError('late')", "KeyError: 'late'"),
        (
            ANY_STAGE.replace("letter: str", "letter: dict"),
            "stage 'only_letter': the type of its option letter is <class 'dict'>; bool, int, float, str",
        ),
        (ANY_STAGE.replace("letter: str", "letter: 'Unknown'"), "the type of its option letter is 'Unknown'"),
    ],
)
def test_a_plugin_that_fails_leaves_nothing_and_says_where(tmp_path, source, said):
    path = tmp_path / "bad.py"
    path.write_bytes(source if isinstance(source, bytes) else source.encode())
    before = dict(REGISTER)
    with pytest.raises(GlassloopError, match=re.escape(said)) as raised:
        load_plugin(path)
    assert str(path) in str(raised.value) and before == REGISTER


def test_two_plugins_cannot_register_one_name(plugin, tmp_path):
    load_plugin(plugin)
    load_plugin(plugin)  # the same one may be loaded again
    other = tmp_path / "other.py"
    other.write_text(ANY_STAGE)
    with pytest.raises(GlassloopError, match=r"'only_letter' is registered already by letters\.py; another"):
        load_plugin(other)
    with pytest.raises(GlassloopError, match="cannot be read"):
        load_plugin(tmp_path / "missing.py")
    with pytest.raises(GlassloopError, match="it is a folder"):
        load_plugin(tmp_path)
