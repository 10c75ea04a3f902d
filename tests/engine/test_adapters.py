"""Adapters by request, on the default model: several in one batch, apart in the cache, in the record."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from engine.peft_adapter import write_adapter

from glassloop import LLM, GlassloopError, Run, Sampling
from glassloop.engine.logits import logits_after
from glassloop.errors import ModelError, TraceError

PROMPT = "The sea was calm, and the old man who lived by the harbour had not seen a ship for many days, so he"
SAMPLING = Sampling(seed=3, max_tokens=8, temperature=0.9, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM()


@pytest.fixture(scope="module")
def folders(llm, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        "sea": write_adapter(folder / "sea", llm.config, 8, "q k v o gate up down", 1),
        "land": write_adapter(folder / "land", llm.config, 3, "v down", 2),
    }


@pytest.fixture(scope="module")
def adapted(llm, folders) -> LLM:
    for name, folder in folders.items():
        llm.load_adapter(name, folder)
    return llm


def _with(adapter: str | None, **options: object) -> Sampling:
    return SAMPLING.changed({"adapter": adapter, **options})


def test_base_and_two_adapters_at_once_equal_each_alone(adapted, folders):
    names = [None, "sea", "land", "sea", None]
    alone = []
    for name in names[:3]:
        one = LLM(adapters={name: folders[name]} if name else None, draft=False)
        alone.append(one.generate(PROMPT, _with(name)))
        one.close()
    assert len({tuple(run.token_ids) for run in alone}) == 3
    together = adapted.generate([PROMPT] * 5, [_with(name) for name in names])
    for run, name in zip(together, names, strict=True):
        assert run.tokens == alone[names.index(name)].tokens  # with every number of the records
        assert run.adapters == ({} if name is None else {name: adapted.adapters[name]})
    beams = adapted.generate(PROMPT, Sampling(adapter="land", temperature=0, beam_width=2, max_tokens=4))
    assert beams.token_ids != adapted.generate(PROMPT, Sampling(temperature=0, max_tokens=4)).token_ids


def test_a_prefix_is_used_for_its_own_adapter_alone(adapted):
    prompt = "A text that nobody has asked about before, long enough for a page of the cache. " * 3
    sampling = Sampling(temperature=0, max_tokens=2)
    cached = [
        adapted.generate(prompt, sampling.changed({"adapter": name})).cached_tokens
        for name in (None, "sea", "land", "sea", "land", None)
    ]
    assert cached[:3] == [0, 0, 0] and min(cached[3:]) > 30
    adapted.engine.call(adapted.engine.loop.tree.check_integrity)


def test_a_run_with_an_adapter_can_be_asked_about(adapted, tmp_path):
    run = adapted.generate(PROMPT, _with("sea"))
    assert run.replay().identical
    assert run.explain(3).taken.id == run.token_ids[3]
    assert run.explain(0, adapter=None).taken.id == adapted.generate(PROMPT, _with(None)).token_ids[0]
    again = run.fork(2, temperature=0.5)
    assert again.token_ids[:2] == run.token_ids[:2] and again.adapters == run.adapters
    assert again.replay().identical
    for at, options in (
        (0, {}),
        (4, {}),
        (4, {"prompt_logprobs": 1}),
    ):  # each fork scores the prompt for itself
        scored = adapted.generate(PROMPT, _with("sea", prompt_logprobs=2)).fork(at, adapter="land", **options)
        assert scored.prompt_tokens[2].raw_logprob == scored.explain(3, of="prompt").taken.raw_logprob
        assert scored.explain(3, of="prompt").difference is None
    other = run.fork(4, adapter="land")  # its past was drawn with the other adapter
    assert other.adapters == adapted.adapters and other.replay().identical
    other.save(tmp_path / "a.glass")
    loaded = Run.load(tmp_path / "a.glass")
    assert loaded.adapters == adapted.adapters and loaded.replay(adapted).identical
    layers = adapted.lens.layers(run, len(run.prompt_ids))
    assert layers.layers[-1].logprob == pytest.approx(run.tokens[1].raw_logprob, abs=1e-5)
    rest = adapted.generate(PROMPT, _with("sea", max_tokens=4))
    assert rest.token_ids == run.token_ids[:4]


def test_a_run_is_refused_without_its_adapter(adapted, folders, tmp_path):
    run = adapted.generate(PROMPT, _with("sea", max_tokens=2))
    run.save(tmp_path / "a.glass")
    without = LLM()
    loaded = Run.load(tmp_path / "a.glass")
    for ask in (loaded.replay, lambda llm: loaded.fork(1, llm=llm), lambda llm: loaded.explain(1, llm=llm)):
        with pytest.raises(TraceError, match=r"with the adapter sea \(.*…\), and .* has no adapter"):
            ask(without)
    without.load_adapter("sea", folders["land"])
    with pytest.raises(TraceError, match=r"with the adapter sea \((.*)…\), and .* has sea \((?!\1)"):
        loaded.replay(without)
    verdict = without.replay(loaded, strict=False)
    assert any("made with the adapter sea" in note for note in verdict.notes)
    without.close()


def test_names_are_checked(adapted, folders):
    with pytest.raises(GlassloopError, match="adapter is 'sky'; one of 'sea', 'land' is expected"):
        adapted.generate("a", adapter="sky")
    with pytest.raises(GlassloopError, match="'sea' is loaded already"):
        adapted.load_adapter("sea", folders["sea"])
    for name in ("", "a:b", "a/b", "x" * 65, 3):
        with pytest.raises(GlassloopError, match="adapter"):
            adapted.load_adapter(name, folders["sea"])
    with pytest.raises(GlassloopError, match="adapter 'sky' is not loaded"):
        adapted.unload_adapter("sky")


def test_an_adapter_is_unloaded_when_nothing_uses_it(adapted, folders):
    adapted.load_adapter("short", folders["land"])
    tokens = adapted.stream(PROMPT, _with("short", max_tokens=30))
    first = next(tokens)
    number = adapted.adapter_number("short")
    adapted.unload_adapter("short")
    with pytest.raises(GlassloopError, match="adapter is 'short'"):
        adapted.generate("a", adapter="short")
    rest = [first, *tokens]
    assert [token.id for token in rest] == adapted.generate(PROMPT, _with("land", max_tokens=30)).token_ids
    adapted.engine.call(adapted.engine.loop.tree.check_integrity)
    assert adapted.transformer.adapters.loaded[number] is None
    assert number not in adapted.engine.loop.tree.roots


def test_numbers_of_unloaded_adapters_are_used_again_and_nothing_is_mixed_up(adapted, folders):
    """A server that rotates adapters does not grow, and no adapter sees what another one computed."""
    sizes = set()
    expected = {name: adapted.generate(PROMPT, _with(name)).tokens for name in folders}
    stale = None
    for turn in range(6):
        name = ("sea", "land")[turn % 2]
        adapted.load_adapter("turning", folders[name])
        run = adapted.generate(PROMPT, _with("turning"))
        assert run.tokens == expected[name] and run.cached_tokens == 0
        assert run.replay().identical and run.explain(2).taken.id == run.token_ids[2]
        number = adapted.adapter_number("turning")
        assert stale is None or (number == stale and number is not stale)
        if stale is not None:  # of a caller that was slow: the number is another adapter's by now
            with pytest.raises(GlassloopError, match="the adapter was unloaded meanwhile"):
                next(logits_after(adapted.engine, run.prompt_ids, 0, None, stale))
            with pytest.raises(GlassloopError, match="the adapter was unloaded meanwhile"):
                adapted._rows.row(run.prompt_ids + run.token_ids[:2], None, stale)
        stale = number
        sizes.add(len(adapted.transformer.adapters.loaded))
        adapted.unload_adapter("turning")
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ("file", "change", "expected"),
    [
        ("adapter_model.safetensors", b"not safetensors", "adapter_model.safetensors"),
        ("adapter_model.safetensors", None, "adapter_model.safetensors"),
        ("adapter_config.json", b"[]", "adapter_config.json"),
        ("adapter_config.json", {"r": 1 << 40}, "r is"),
        ("adapter_config.json", {"r": 4}, "does not fit"),
        ("adapter_config.json", {"lora_alpha": "x"}, "lora_alpha"),
        ("nan", None, "not finite"),
        ("missing", None, "does not fit"),
    ],
)
def test_hostile_files_are_refused(adapted, folders, tmp_path, file, change, expected):
    for each in ("adapter_model.safetensors", "adapter_config.json"):
        (tmp_path / each).write_bytes((folders["land"] / each).read_bytes())
    if file == "nan":
        path = tmp_path / "adapter_model.safetensors"
        path.write_bytes(path.read_bytes()[:-4] + np.float32(np.nan).tobytes())
    elif file == "missing":
        path = tmp_path / "adapter_model.safetensors"
        path.write_bytes(path.read_bytes().replace(b"lora_B", b"lora_C", 1))
    elif isinstance(change, dict):
        values = json.loads((tmp_path / file).read_text())
        (tmp_path / file).write_text(json.dumps(values | change))
    elif change is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(change)
    before = adapted.adapters
    with pytest.raises(ModelError, match=expected):
        adapted.load_adapter("bad", tmp_path)
    assert adapted.adapters == before
