"""A run that was saved comes back as it was, to the last bit; what is not as it was written is refused."""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import fields

import numpy as np
import pytest
from engine.random_runs import PROMPT, random_run, small_llm
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import Run, Sampling, TraceError
from glassloop.record.format import glass_bytes as file
from glassloop.record.format.glass_file import from_bytes, read, to_bytes
from glassloop.record.format.header import records_of, to_header
from glassloop.record.store.store import Store
from glassloop.record.token import Refusal

_AT_HAND = {"llm", "above", "children", "samples", "tokens", "prompt_tokens", "end", "error"}


def same(run: Run, other: Run) -> bool:
    """Whether every field, and every bit of every token with its time and source, is the same."""
    plain = [field.name for field in fields(Run) if field.name not in _AT_HAND]
    mine, theirs = records_of(run), records_of(other)
    return (
        all(getattr(run, name) == getattr(other, name) for name in plain)
        and mine == theirs
        and [_rest(token) for token in mine] == [_rest(token) for token in theirs]
        and run.text == other.text
        and (run.error is None) == (other.error is None)
        and run.to_dict() == other.to_dict()
    )


def _rest(token):
    chosen = token.chosen
    return (
        token.source,
        token.seconds,
        token.sample,
        token.refused,
        chosen.survivors,
        chosen.scale,
        token.alternatives,
    )


@pytest.mark.parametrize("seed", range(80))
def test_what_was_saved_comes_back_bit_for_bit(seed):
    rng = np.random.default_rng(seed)
    run = random_run(rng, beam_width=3, n=2, stop=[]) if seed % 10 == 0 else random_run(rng)
    run.identity  # noqa: B018  (asks for the hash)
    assert same(from_bytes(to_bytes([run]))[0], run), run.sampling


def drafted() -> Run:
    """A run with two refused drafts, set by hand: whether there are any depends on the machine's speed."""
    run = small_llm().generate(PROMPT, Sampling(seed=1, max_tokens=12, ignore_eos=True))
    run.tokens[3].refused = Refusal(200, "<0xC8>", "lookup", 2)
    run.tokens[7].refused = Refusal(101, "e", "model", 0)
    return run


def refusals(run: Run) -> dict[int, Refusal]:
    return {at: token.refused for at, token in enumerate(run.tokens) if token.refused}


def test_refused_guesses_are_kept_as_far_as_the_tokens_are(tmp_path):
    run = drafted()
    run.save(tmp_path / "a.glass")
    loaded = Run.load(tmp_path / "a.glass")
    assert same(loaded, run) and refusals(loaded) == refusals(run) and {3, 7} <= refusals(run).keys()
    store = Store(tmp_path / "runs.db")
    store.add(run)
    assert refusals(store.get(run.id)) == refusals(run)
    shown = [token["refused"] for token in run.to_dict()["tokens"]]
    assert [at for at, each in enumerate(shown) if each] == list(refusals(run))
    assert shown[3] == {"id": 200, "text": "<0xC8>", "by": "lookup", "dropped": 2}
    for branch in (run.rewind(7), run.fork(7, token=run.token_ids[7])):  # the second is beyond that
        assert branch.tokens[3].refused == run.tokens[3].refused
        assert [at for at in refusals(branch) if 3 <= at <= 7] == [at for at in refusals(run) if 3 <= at < 7]


def test_a_file_from_before_refusals_were_kept_has_none(monkeypatch):
    run = drafted()

    def before(run: Run):
        return {name: value for name, value in to_header(run).items() if name != "refused"}

    monkeypatch.setattr(file, "to_header", before)
    loaded = from_bytes(to_bytes([run]))[0]
    assert loaded.tokens == run.tokens and refusals(loaded) == {}


def test_a_fork_and_its_parent_and_their_samples_find_each_other(tmp_path):
    llm = small_llm()
    run = llm.generate(PROMPT, Sampling(seed=1, n=3, max_tokens=12, stop_token_ids=[], ignore_eos=True))
    fork = run.fork(4, token=101, n=1)
    again = fork.fork(8, temperature=0.3)
    again.save(tmp_path / "a.glass", tree=True)
    loaded = Run.load(tmp_path / "a.glass")
    assert same(loaded, again) and loaded.above is not None and same(loaded.above, fork)
    assert same(loaded.above.above, run) and [each.id for each in loaded.tree()] == [
        each.id for each in run.tree()
    ]
    assert [each.id for each in loaded.above.above.samples] == [each.id for each in run.samples]
    assert str(loaded.tree()) == str(run.tree()) and len(run.tree()) == 5
    run.save(tmp_path / "b.glass")
    assert len(read(tmp_path / "b.glass")) == 3


@pytest.fixture(scope="module")
def data() -> bytes:
    return to_bytes([small_llm().generate(PROMPT, Sampling(seed=1, max_tokens=5))])


@settings(max_examples=400, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_noticed(data, place, bit):
    damaged = bytearray(data)
    damaged[int(place * len(data))] ^= 1 << bit
    with pytest.raises(TraceError):
        from_bytes(bytes(damaged))


def test_every_flipped_byte_of_the_front_is_noticed(data):
    for at in range(40):
        damaged = bytearray(data)
        damaged[at] ^= 0xFF
        with pytest.raises(TraceError, match=r"damaged|not a glassloop trace"):
            from_bytes(bytes(damaged))


def test_a_file_that_is_cut_off_says_so(data):
    for size in [*range(1, 60), len(data) // 2, len(data) - 1]:
        with pytest.raises(TraceError, match="is cut off"):
            from_bytes(data[:size])


def test_more_than_there_was_is_damage(data):
    with pytest.raises(TraceError, match="damaged"):
        from_bytes(data + b"x")


def test_files_of_others_and_of_the_future(data, tmp_path):
    for strange in (b"", b"GGUF....", b'{"text": 1}', b"\x89PNG\r\n\x1a\n" + bytes(50)):
        with pytest.raises(TraceError, match="is not a glassloop trace"):
            from_bytes(strange)
    with pytest.raises(TraceError, match="version 7 of the format; this glassloop reads up to 2"):
        from_bytes(_with_front(data, version=7))
    with pytest.raises(TraceError, match=r"nothing.glass: cannot be read: No such file"):
        Run.load(tmp_path / "nothing.glass")
    with pytest.raises(TraceError, match=r"cannot write .*: No such file"):
        from_bytes(data)[0].save(tmp_path / "no folder" / "a.glass")
    assert not list(tmp_path.iterdir())


def _with_front(data: bytes, version: int = 1, count: int = 1) -> bytes:
    front = struct.pack("<8sHHQ", data[:8], version, count, len(data))
    whole = front + struct.pack("<I", zlib.crc32(front)) + data[24:-32]
    return whole + hashlib.sha256(whole).digest()


def test_a_wrong_count_with_a_right_checksum_is_no_valid_trace(data):
    for count in (0, 2):
        with pytest.raises(TraceError, match="not a valid trace"):
            from_bytes(_with_front(data, count=count))


def test_a_run_of_another_model_is_refused(data, tmp_path):
    path = tmp_path / "a.glass"
    path.write_bytes(data)
    with pytest.raises(TraceError, match="made by another model: small"):
        Run.load(path, llm=small_llm(seed=1))
    run = Run.load(path)
    with pytest.raises(TraceError, match="was read from a file; llm= is expected"):
        run.explain(0)


def test_a_token_with_20_alternatives_takes_at_most_300_bytes():
    from glassloop import LLM

    llm = LLM()
    worst = 0.0
    for options in ({}, {"temperature": 0.8, "top_p": 0.95}, {"temperature": 1.3, "repetition_penalty": 1.2}):
        run = llm.generate(
            "The sea", Sampling(seed=3, max_tokens=200, logprobs=20, ignore_eos=True, **options)
        )
        worst = max(worst, len(to_bytes([run])) / len(run.tokens))
    print(f"{worst:.0f} bytes a token")
    assert worst <= 300


def test_a_fork_of_a_run_from_a_file_is_written_with_the_pieces_of_its_own_tokens():
    llm = small_llm()
    asked = Sampling(seed=1, max_tokens=4, logprobs=0, ignore_eos=True)
    (run,) = from_bytes(to_bytes([llm.generate(PROMPT, asked)]))
    known = {token.id for token in run.tokens} | {token.runner_up for token in run.tokens}
    other = next(token for token in range(llm.config.vocab_size) if token not in known)
    fork = llm.fork(run, 2, token=other)
    (back,) = from_bytes(to_bytes([fork]))
    assert [token.piece for token in back.tokens] == [llm.piece(token) for token in fork.token_ids]
    assert back.tokens[2].id == other
