"""A receipt says which run it is of, tells nothing of its text, and is true only if the model computes the
same numbers: whatever is changed in the receipt or in the run is found."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
from engine.random_runs import PROMPT, random_sampling, small_llm

from glassloop import Run, Sampling, TraceError, verify
from glassloop.decode.chosen import Chosen
from glassloop.record.format.glass_bytes import from_bytes_as, to_bytes
from glassloop.record.receipt import load_receipt, receipt_from
from glassloop.record.run_parts import Past

SAMPLING = Sampling(temperature=0.9, top_p=0.9, seed=4, max_tokens=24, stop=["zz"], ignore_eos=True)


@pytest.fixture(scope="module")
def run() -> Run:
    return small_llm().generate(PROMPT, SAMPLING)


def reread(run: Run) -> Run:
    return from_bytes_as(Run, to_bytes([run]))[0]


@pytest.mark.parametrize("seed", range(12))
def test_receipt_of_any_run_is_true(seed, tmp_path):
    rng = np.random.default_rng(seed)
    llm = small_llm()
    run = llm.generate(PROMPT, random_sampling(rng, prompt_logprobs=int(seed % 3 == 0)))
    if seed % 2 and len(run.tokens) > 2:
        run = run.fork(2, temperature=0.5)
    verdict = verify(run.receipt(), llm)
    assert verdict.identical and verdict, verdict.sentence
    path = tmp_path / "receipt.json"
    run.receipt().save(path, with_text=True)
    assert verify(path, llm)
    run.receipt().save(path)
    assert verify(path, llm, run=reread(run))


def test_receipt_is_true_on_a_longer_batch_and_for_beams():
    llm = small_llm()
    for each in llm.generate([PROMPT, PROMPT[::-1]], Sampling(beam_width=3, max_tokens=9, seed=1)):
        assert verify(each.receipt(), llm)


def test_receipt_does_not_have_the_text(run, tmp_path):
    run.receipt().save(tmp_path / "receipt.json")
    written = (tmp_path / "receipt.json").read_text()
    assert str(list(run.prompt_ids))[1:20] not in written and run.text[:8] not in written
    one, other = run.receipt(), run.receipt()
    assert one.prompt != other.prompt and one.tags != other.tags  # a table of digests is of no use
    assert one.is_text(run.text) and not one.is_text(run.text + " ")


@pytest.mark.parametrize("field", sorted(set(Run(model="", prompt_ids=[1], seed=0, context=1).__dict__)))
def test_run_with_any_part_changed_is_not_the_receipts(field, run):
    """Each field of a run either is of the receipt, or is known here not to change the answer."""
    other = reread(run)
    value = getattr(other, field)
    changed = {
        "model": "another",
        "prompt_ids": [*run.prompt_ids[:-1], run.prompt_ids[-1] ^ 1],
        "seed": run.seed + 1,
        "context": run.context + 1,
        "sampling": replace(run.sampling, temperature=0.91),
        "salt": run.salt + 1,
        "ops": "another arithmetic",
        "id": "0" * 16,
        "created": run.created + 1,
        "model_hash": "1" * 64,
        "adapters": {"a": "1" * 64},
        "past": (Past(3, "x", run.sampling, 1, 0, {}),),
        "tail": value if field != "tail" else "more",
        "finish_reason": "stop",
        "stop_reason": "something",
        "pending": [1],
        "tokens": run.tokens[:-1],
        "plugins": None,
    }
    apart = {"prompt", "messages", "sample", "samples", "parent", "fork_at", "reason", "revised", "origin"}
    apart |= {"error", "cached_tokens", "timings", "drafts", "beams", "moves", "forks", "search", "llm"}
    apart |= {"above", "children", "prompt_tokens", "end", "plugins", "form"}
    assert field in changed or field in apart, "is it a part of the answer?"
    if field in apart:
        return
    setattr(other, field, changed[field])
    verdict = verify(run.receipt(), small_llm(), run=other)
    assert not verdict and verdict.replay is None and verdict.problems


@pytest.mark.parametrize("number", ["logprob", "raw_logprob", "luck", "margin", "rank"])
def test_one_bit_of_a_number_is_found(number, run):
    other = reread(run)
    token = copy(other.tokens[7])
    names = ("id", "logprob", "raw_logprob", "rank", "rank_after", "entropy", "log_sum_exp")
    names += ("log_sum_exp_after", "scale", "luck", "margin", "runner_up", "survivors")
    numbers = {name: getattr(token.chosen, name) for name in names}
    value = numbers[number]
    numbers[number] = value + 1 if isinstance(value, int) else float(np.nextafter(value, 9e9))
    token.chosen = Chosen.of(token.chosen.packed_alternatives, **numbers)
    other.tokens[7] = token
    verdict = verify(run.receipt(), small_llm(), run=other)
    assert verdict.problems == (
        "the numbers of the run are not the receipt's",
        "the first token that differs is token 7",
    )
    # Whoever makes a receipt of the changed numbers is found by the model.
    verdict = verify(other.receipt(), small_llm())
    assert not verdict and verdict.first is not None and verdict.first.at == 7


def test_another_model_is_found(run):
    with pytest.raises(TraceError, match="made by another model"):
        verify(run.receipt(), small_llm(seed=1))
    pretended = reread(run)
    pretended.model_hash = small_llm(seed=1).model_hash
    verdict = verify(pretended.receipt(), small_llm(seed=1))
    assert not verdict and verdict.first is not None


def test_every_changed_field_of_a_receipt_is_found(run):
    plain = run.receipt().to_dict()
    for name, value in plain.items():
        if name in ("signature", "key"):
            continue
        changed = dict(plain)
        if isinstance(value, str):
            changed[name] = value[:-1] + ("0" if value[-1:] != "0" else "1")
        elif isinstance(value, dict):
            changed[name] = {"a": "b"}
        elif isinstance(value, list):
            changed[name] = value[1:]
        else:
            changed[name] = value + 1
        with pytest.raises(TraceError):
            receipt_from(changed)
        with pytest.raises(TraceError, match=name):
            receipt_from({key: each for key, each in plain.items() if key != name})


def test_receipt_with_a_new_seal_is_not_the_runs(run):
    """Who changes a field and computes the seal anew is found by the run, whatever the field."""
    receipt = run.receipt()
    for name in (
        "run",
        "model",
        "model_hash",
        "arithmetic",
        "prompt",
        "options",
        "answer",
        "text",
        "numbers",
    ):
        changed = replace(receipt, **{name: "f" * 64})
        assert not verify(receipt_from(changed.to_dict()), small_llm(), run=run)
    for name in ("created", "prompt_tokens"):
        assert not verify(replace(receipt, **{name: 3}), small_llm(), run=run)
    assert not verify(replace(receipt, salt="0" * 64), small_llm(), run=run)
    assert not verify(replace(receipt, tags=receipt.tags[:-1]), small_llm(), run=run)


def test_signature_finds_every_change_without_the_run(run, tmp_path):
    pytest.importorskip(
        "cryptography", reason="cryptography is not installed (pip install 'glassloop[receipts]')"
    )
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from glassloop.record.signing import signature_problem

    for name in ("one", "other"):
        pem = Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (tmp_path / name).write_bytes(pem)
    receipt, by_other = run.receipt(key=tmp_path / "one"), run.receipt(key=tmp_path / "other")
    assert verify(receipt, small_llm(), key=receipt.key).signer == receipt.key
    assert signature_problem(receipt, by_other.key) and signature_problem(run.receipt(), receipt.key)
    assert signature_problem(replace(receipt, key=None)) and signature_problem(
        replace(receipt, signature=None)
    )
    for name in (
        "run",
        "model",
        "model_hash",
        "arithmetic",
        "salt",
        "prompt",
        "options",
        "answer",
        "text",
        "numbers",
    ):
        assert signature_problem(replace(receipt, **{name: "f" * 64}))
    for name, value in (("created", 1), ("prompt_tokens", 1), ("adapters", {"a": "b"}), ("tags", ("0" * 8,))):
        assert signature_problem(replace(receipt, **{name: value}))
    (tmp_path / "text").write_text("no key")
    with pytest.raises(TraceError, match="not a private key"):
        run.receipt(key=tmp_path / "text")


def test_what_has_no_receipt_says_why(run, tmp_path):
    unfinished = reread(run)
    unfinished.finish_reason = None
    with pytest.raises(TraceError, match="has not ended"):
        unfinished.receipt()
    with pytest.raises(TraceError, match="run is not given"):
        verify(receipt_from(run.receipt().to_dict()), small_llm())
    for text in ("", "[", "{}", "[]", '{"glassloop_receipt": 2}', "[" * 100_000):
        (tmp_path / "bad").write_text(text)
        with pytest.raises(TraceError, match="receipt"):
            load_receipt(tmp_path / "bad")
    plain = run.receipt().to_dict(with_text=True)
    for content in ("§", "AAAA", plain["content"][:-40], json.dumps(plain)):
        with pytest.raises(TraceError, match="content"):
            receipt_from(plain | {"content": content})
