"""Stages of a user's own, as docs/decoding.md describes them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import glassloop
from glassloop import Candidates, Step
from glassloop.decode.history import History
from glassloop.decode.stage import REGISTER

SECTION = (
    (Path(__file__).parents[2] / "docs" / "decoding.md")
    .read_text(encoding="utf-8")
    .split("\n## Your own order and your own stages\n")[1]
    .split("\n## ")[0]
)


def test_the_example_of_the_document_does_what_it_says(capsys):
    example = next(
        code for code in re.findall(r"^```python\n(.*?)^```", SECTION, re.S | re.M) if "@stage" in code
    )
    names: dict = {}
    try:
        exec(compile(example, "docs/decoding.md", "exec"), names)
        run, llm = names["run"], names["llm"]
        assert "new_opening" in capsys.readouterr().out
        pieces = [token.piece for token in run.tokens]
        starts = [0] + [place + 1 for place, text in enumerate(pieces) if text.endswith((".", "!", "?"))]
        openings = [run.token_ids[place] for place in starts if place < len(pieces)]
        assert len(openings) >= 3 and len(set(openings)) == len(openings)
        plain = llm.generate("My sister has a cat.", names["Sampling"](temperature=0, max_tokens=60))
        first = next(
            place
            for place, ids in enumerate(zip(run.token_ids, plain.token_ids, strict=False))
            if len(set(ids)) > 1
        )
        assert first in starts and "removed by new_opening" in str(run.explain(first))
        assert run.replay().identical
    finally:
        REGISTER.pop("new_opening", None)


@pytest.mark.parametrize(
    ("title", "kind"), [("Step", Step), ("History", History), ("Candidates", Candidates)]
)
def test_every_name_of_the_reference_exists(title, kind):
    table = SECTION.split(f"### `{title}`\n")[1].split("\n### ")[0]
    cells = re.findall(r"^\| (`[^|]*`) \|", table, re.M)
    names = [name for cell in cells for name in re.findall(r"`(\w+)", cell)]
    known = set(dir(kind)) | set(getattr(kind, "__annotations__", ()))
    if kind is History:
        known |= set(vars(History([1])))
    assert len(names) >= 6 and not set(names) - known


def test_a_stage_gets_the_tokenizer_of_the_model():
    from engine.random_runs import PROMPT, small_llm

    seen = []
    try:

        @glassloop.stage("looks", kind="mask")
        def looks(candidates, step):
            seen.append(step.tokenizer.decode(step.history.tokens))
            return candidates

        options = glassloop.Sampling(
            stages=[*glassloop.DEFAULT_ORDER, "looks"], max_tokens=2, ignore_eos=True
        )
        run = small_llm().generate(PROMPT, options)
        assert seen[0] == bytes(PROMPT).decode() and len(run.tokens) == 2
    finally:
        REGISTER.pop("looks", None)


def test_the_name_of_a_built_in_stage_is_taken_whatever_was_imported_before():
    program = "import glassloop\n@glassloop.stage('top_k', kind='mask')\ndef mine(candidates, step): ..."
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "stage 'top_k' is built in; another name is expected" in done.stderr
