"""The record of a text that was filled in passes: it is kept in files of version 2 and in the store, replays
bit for bit, and every pass can be explained. Damaged records are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from diffuse.small import MASK, MaskedLLM, masked_llm
from engine.random_runs import PROMPT, small_llm
from engine.small import EOS, finish, loop
from hostile import glass
from jsonschema_rs import validator_for

from glassloop import GlassloopError, Run, Sampling, TraceError
from glassloop.decode.chosen import RECORD, Chosen
from glassloop.decode.diffusion import Diffusion
from glassloop.diffuse.replay import known_before, last_filled
from glassloop.record.format.check_header import read_header
from glassloop.record.format.glass_bytes import version_of
from glassloop.record.format.glass_file import from_bytes, to_bytes
from glassloop.record.format.header import to_header
from glassloop.record.origin import ByMasks
from glassloop.record.store.listing import Listing
from glassloop.record.store.store import Store
from glassloop.record.token import Token

OPTIONS = Diffusion(block=8, threshold=0.6, revise=1)
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def run() -> Run:
    sampling = Sampling(seed=3, temperature=0.9, max_tokens=20, logprobs=4, top_k=40)
    return masked_llm().diffuse(PROMPT, sampling, diffusion=OPTIONS)


def test_a_file_has_the_passes_and_the_run_replays(run, tmp_path):
    run.save(tmp_path / "a.glass")
    loaded = Run.load(tmp_path / "a.glass", llm=masked_llm())
    assert loaded.tokens == run.tokens and loaded.passes == run.passes and loaded.diffusion == run.diffusion
    assert any(record.unfilled for record in run.passes)
    verdict = loaded.replay()
    assert verdict.identical and verdict.tokens == len(run.tokens), verdict.sentence
    assert loaded.to_dict() == run.to_dict()


def test_only_a_file_with_masks_is_of_version_2(run):
    plain = small_llm().generate(PROMPT, Sampling(seed=1, max_tokens=4))
    assert version_of([plain]) == 1 and to_bytes([plain])[8] == 1
    assert version_of([plain, run]) == 2 and to_bytes([run])[8] == 2
    assert from_bytes(to_bytes([plain]))[0].tokens == plain.tokens
    assert "passes" not in to_header(plain) and "passes" not in plain.to_dict()


def test_the_schemas_describe_it(run):
    header = json.loads(json.dumps({**to_header(run), "columns": []}))
    plain = json.loads(json.dumps(run.to_dict()))
    for name, written in (("trace-header.schema.json", header), ("run.schema.json", plain)):
        schema = validator_for(json.loads((DOCS / name).read_text()))
        schema.validate(written)
        schema.validate({**written, "diffusion": {**written["diffusion"], "after": [1, 2]}})
        wrong = json.loads(json.dumps(written))
        wrong["passes"][0] = {"number": 0}
        assert not schema.is_valid(wrong)


def test_a_store_keeps_it(run, tmp_path):
    store = Store(tmp_path / "runs.db")
    store.add(run)
    assert store.get(run.id).passes == run.passes
    (whole,), (brief,) = (store.kept(Listing(5), brief) for brief in (False, True))
    assert whole.facts["diffusion"] == run.diffusion and whole.facts["passes"] == len(run.passes)
    assert brief.facts["diffusion"] == "object"
    store.add(small_llm().generate(PROMPT, Sampling(max_tokens=1)))
    assert store.kept(Listing(1), True)[0].facts["diffusion"] is None
    store.close()


def test_a_replay_notices_a_changed_token_and_a_changed_pass(run):
    other = replace(run, tokens=[*run.tokens[:3], run.tokens[4], *run.tokens[4:]])
    verdict = masked_llm().replay(other)
    assert not verdict.identical and verdict.first.at == 3
    moved = replace(run.passes[1], filled=run.passes[1].filled[::-1] + run.passes[1].filled[:1])
    verdict = masked_llm().replay(
        replace(run, origin=ByMasks(run.diffusion, [run.passes[0], moved, *run.passes[2:]]))
    )
    told = f"not identical, but {len(run.tokens)} of {len(run.tokens)} tokens are the same"
    assert not verdict.identical and verdict.sentence == f"{told} (the passes are not the same)"


def test_a_replay_compares_from_the_first_token_that_is_asked_for(run):
    other = replace(run, tokens=[*run.tokens[:3], run.tokens[4], *run.tokens[4:]])
    assert masked_llm().replay(other, first=3).first.at == 3
    verdict = masked_llm().replay(other, first=4)
    assert verdict.identical and verdict.tokens == len(run.tokens) - 4
    assert masked_llm().replay(run, first=len(run.tokens)).tokens == 0
    for wrong in (-1, len(run.tokens) + 1):
        with pytest.raises(TraceError, match=f"first is {wrong}; a token from 0 to {len(run.tokens)} is"):
            masked_llm().replay(run, first=wrong)


def test_a_replay_that_is_not_strict_compares_with_another_model_and_adapter(run):
    loaded = from_bytes(to_bytes([run]))[0]
    other = MaskedLLM()
    other._mask = other.mask._replace(sha256="0" * 64)
    verdict = other.replay(loaded, strict=False)
    assert verdict.identical and verdict.notes == ("made with another adapter for masked rows",)
    verdict = masked_llm().replay(replace(loaded, model_hash="1" * 64), strict=False)
    assert verdict.identical and "made by another model" in verdict.sentence
    forbidding = replace(run.sampling, allowed_token_ids=[MASK])  # of which nothing is left
    verdict = masked_llm().replay(replace(loaded, sampling=forbidding), strict=False)
    assert verdict.first.at == 0 and verdict.first.chosen is None


def test_the_token_that_ended_a_text_is_compared_too():
    ending = {"logit_bias": {EOS: 18.0}, "seed": 3, "max_tokens": 40}
    run = masked_llm().diffuse(PROMPT, Sampling(**ending), diffusion=OPTIONS)
    assert run.end is not None
    verdict = run.replay()
    assert verdict.identical and verdict.tokens == len(run.tokens) + 1
    assert not replace(run, end=run.tokens[0]).replay(masked_llm()).identical


@pytest.mark.parametrize("pages", [5, 6])
def test_a_text_without_room_is_replayed_as_far_as_it_went(pages):
    llm = masked_llm()
    request = llm.prepare(PROMPT, Sampling(seed=3, max_tokens=150, ignore_eos=True, diffusion=OPTIONS))
    (run,) = finish(loop(llm.transformer, pages), request)
    assert (run.finish_reason, run.stop_reason) == ("length", "kv memory") and run.tokens
    assert run.cut_short
    verdict = run.replay()
    assert verdict.identical and verdict.sentence.startswith("identical, "), verdict


def test_every_place_is_explained_by_the_pass_that_filled_it(run):
    llm = masked_llm()
    for at in (0, 3, len(run.tokens) - 1):
        told = llm.explain(run, at)
        assert told.winner.id == run.tokens[at].id
        assert told.winner.luck == run.tokens[at].luck and told.sentence.startswith("In pass ")
        assert told.difference is None
    first = run.passes[0]
    assert known_before(run, first) == [None] * 8
    masked = next(at for at in range(8) if at not in {each.at for each in first.filled})
    told = llm.explain(run, masked, number=0)
    assert told.sentence.startswith("In pass 0, with 0 of 8 places known, ")
    what_if = llm.explain(run, 0, temperature=0.0)
    assert what_if.winner.luck == 0
    assert llm.explain(run, 0, of="answer", luck="new").winner.luck != run.tokens[0].luck
    assert llm.explain(run, 0, seed=4).seed == 4
    assert llm.explain(run, 1, of="prompt").source == "prompt"
    with pytest.raises(GlassloopError, match="beam_width is 2; a what-if does not take it"):
        llm.explain(run, 0, beam_width=2)
    with pytest.raises(TraceError, match="pass is 99"):
        llm.explain(run, 0, number=99)
    with pytest.raises(TraceError, match="at is 77"):
        llm.explain(run, 77)
    last = max(each.number for each in run.passes if each.first == 0)
    known = next(at for at, token in enumerate(known_before(run, run.passes[last])) if token is not None)
    with pytest.raises(TraceError, match="is not masked"):
        llm.explain(run, known, number=last)


def test_a_fill_that_the_record_has_otherwise_is_told_as_the_record_has_it(run):
    llm, place = masked_llm(), 3
    number = last_filled(run, place)
    passes = list(run.passes)
    filled = [
        replace(each, id=(each.id + 1) % 255, logprob=-0.5) if each.at == place else each
        for each in passes[number].filled
    ]
    passes[number] = replace(passes[number], filled=tuple(filled))
    token = run.tokens[place]
    fields = {name: getattr(token.chosen, name) for name in RECORD.names or ()} | {"logprob": -0.5}
    chosen = Chosen.of(token.chosen.packed_alternatives, **fields)
    changed = Token(chosen, token.text, token.bytes, token._pieces, "mask")
    told = llm.explain(replace(run, tokens=[*run.tokens[:place], changed, *run.tokens[place + 1 :]]), place)
    assert told.difference is not None and told.difference.fields == ("logprob",)
    assert told.sentence.startswith("The record has other numbers for ")
    assert f"Computed now: In pass {number}, with " in told.sentence
    # Of a fill that is not in the text, the record of its pass has the token and its probabilities.
    told = llm.explain(
        replace(run, tokens=run.tokens[:2], end=None, origin=ByMasks(run.diffusion, passes)), place
    )
    assert told.difference is not None and told.difference.fields == ("id", "logprob")
    assert told.taken.id != told.winner.id == token.id and told.difference.recorded.margin is None
    assert llm.explain(replace(run, tokens=run.tokens[:2], end=None), place).difference is None


def test_another_model_and_another_adapter_are_refused(run):
    loaded = from_bytes(to_bytes([run]))[0]
    with pytest.raises(GlassloopError, match="no adapter for masked rows"):
        small_llm().replay(loaded)
    other = MaskedLLM()
    other._mask = other.mask._replace(sha256="0" * 64)
    with pytest.raises(TraceError, match="another adapter for masked rows"):
        other.replay(loaded)
    with pytest.raises(TraceError, match="another model"):
        masked_llm().replay(replace(loaded, model_hash="1" * 64))
    with pytest.raises(TraceError, match="written by filling masks"):
        masked_llm().fork(run, 2)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda header: header.pop("passes"),
        lambda header: header.pop("diffusion"),
        lambda header: header.update(passes=[[1, 0, 8, [], []]]),
        lambda header: header.update(passes=[[0, 0, 0, [], []]]),
        lambda header: header.update(passes=[[0, 0, 10**9, [], []]]),
        lambda header: header.update(passes=[[0, 0, 8, [], [[8, 1, 0.5, 1, -1, -1]]]]),
        lambda header: header.update(passes=[[0, 4, 8, [[3, 1, "x"]], []]]),
        lambda header: header.update(passes=[[0, 0, 8, [], [[0, -1, 0.5, 1, -1, -1]]]]),
        lambda header: header.update(passes=[[0, 0, 8, [], [[0, 1, 1.5, 1, -1, -1]]]]),
        lambda header: header.update(passes="x"),
        lambda header: header.update(diffusion=[]),
        lambda header: header.update(diffusion={"block": [[[]]]}),
        lambda header: header.update(diffusion={"block": "x" * 257}),
        lambda header: header.update(diffusion={"block": 10**400}),
        lambda header: header.update(diffusion={f"option {each}": 1 for each in range(33)}),
        lambda header: header.update(diffusion={"\n": 1}),
        lambda header: header.update(diffusion={"after": "x"}),
        lambda header: header.update(diffusion={"after": [-1]}),
        lambda header: header.update(diffusion={"after": [0] * 1025}),
    ],
)
def test_a_damaged_header_is_refused_by_name(run, spoil):
    header = glass.read(to_bytes([run]))[0].header
    read_header(json.dumps(header).encode())
    spoil(header)
    with pytest.raises(TraceError, match=r"passes|diffusion"):
        read_header(json.dumps(header).encode())


def test_wrong_options_in_a_file_are_an_error_of_the_replay(run):
    for values in ({"block": -1}, {"unknown": 1}):
        with pytest.raises(TraceError, match=r"diffusion\."):
            masked_llm().replay(replace(run, origin=ByMasks(run.diffusion | values, run.passes)))
