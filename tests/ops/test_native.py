"""The native op set: the reference's answers up to rounding, and each row's answer its own bit for bit,
whatever stands beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model.tiny import TINY, VOCAB, make
from ops.random_models import check
from ops.sanitized import sanitized_environment

from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch
from glassloop.ops.batch import Batch
from glassloop.ops.kv_cache import CacheSpec
from glassloop.ops.native import library, program
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.quant import FORMATS
from glassloop.ops.reference import ReferenceOps
from glassloop.ops.tensor import Tensor


@pytest.fixture(params=library.INSTRUCTION_SETS)
def instructions(request):
    """Each instruction set that this machine has; what is packed for one must not run on another."""
    native = library.library()
    best = native.gl_name()
    if not native.gl_select_kernels(request.param.encode()):
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    native.gl_select_kernels(best)


def _ids(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCAB, length).tolist()


@pytest.mark.parametrize("tiny", TINY, ids=lambda tiny: tiny.name)
def test_logits_equal_the_reference_up_to_rounding(tiny, tmp_path, instructions):
    make(tiny, tmp_path)
    files = ModelFiles(tmp_path)
    native, reference = files.transformer(NativeOps()), files.transformer(ReferenceOps())
    for length in (1, 5, 45):
        work = [(0, 0, _ids(length))]
        ours = Branches(native, 64).forward(work, every_logit=True)
        expected = Branches(reference, 64).forward(work, every_logit=True)
        assert np.abs(ours - expected).max() / np.abs(expected).max() < 2e-3


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "gemma2", "xglm", "qwen2moe", "gpt-oss"])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(1, 60), min_size=1, max_size=7), st.integers(0, 2**32))
def test_a_row_is_the_same_bit_for_bit_in_any_batch(name, tmp_path_factory, prompts, seed):
    """Random lengths, random cuts into chunks, random neighbours, random order of pages, and batches that are
    computed in parts."""
    model = _tiny_native(name, tmp_path_factory)
    rng = np.random.default_rng(seed)  # a draw of hypothesis for each cut takes longer than the model
    alone = [
        Branches(model, 64).forward([(0, 0, _ids(length, branch))], every_logit=True)
        for branch, length in enumerate(prompts)
    ]
    cache = Branches(model, 64, branches=len(prompts))
    done = [0] * len(prompts)
    while any(done[branch] < length for branch, length in enumerate(prompts)):
        work = []
        for branch, length in enumerate(prompts):
            left = length - done[branch]
            step = int(rng.choice([0, min(1, left), rng.integers(0, left + 1), left]))
            if step:
                work.append((branch, done[branch], _ids(length, branch)[done[branch] : done[branch] + step]))
        if not work:
            continue
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(program, "ROWS_PER_THREAD", int(rng.choice([4, 16, 64])))
            logits, row = cache.forward(work, every_logit=True), 0
        for branch, first, ids in work:
            expected = alone[branch][first : first + len(ids)]
            assert logits[row : row + len(ids)].tobytes() == expected.tobytes()
            row += len(ids)
            done[branch] += len(ids)


_MODELS: dict[str, object] = {}


def _tiny_native(name, tmp_path_factory):
    if name not in _MODELS:
        folder = tmp_path_factory.mktemp(name)
        make(next(tiny for tiny in TINY if tiny.name == name), folder)
        _MODELS[name] = ModelFiles(folder).transformer(NativeOps())
    return _MODELS[name]


@pytest.fixture(scope="module", params=["smollm2-135m-instruct", "gemma-3-270m"])
def real(request):
    files = ModelFiles(fetch(request.param))
    return files.transformer(NativeOps()), files.tokenizer()


TEXT = (
    "The sea was calm that morning, and the fishermen had already gone out when the bell rang. Nobody in the "
    "village could remember when it had last been heard; the old men said that it meant a storm, and the "
    "children, who had never seen one, ran down to the harbour to wait for it. "
) * 12


def test_real_logits_are_the_same_alone_and_among_2_to_64_rows(real):
    model, tokenizer = real
    ids = tokenizer.encode(TEXT)[:64]
    alone = Branches(model, 64).forward([(0, 0, ids)])
    for neighbours in (1, 2, 7, 15, 31, 63):
        cache = Branches(model, 64, branches=neighbours + 1)
        others = [(branch, 0, ids[: 1 + branch % 5]) for branch in range(1, neighbours + 1)]
        cache.forward([(0, 0, ids[:-1]), *others[: neighbours // 2]])
        last = cache.forward([*others[neighbours // 2 :], (0, 63, ids[-1:])])
        assert last[-1].tobytes() == alone[0].tobytes()


@pytest.mark.parametrize("chunk", [1, 3, 32, 100, 599])
def test_real_logits_are_the_same_in_chunks_of_any_size(real, chunk):
    """600 tokens: past Gemma's window of 512. The prefix is in the cache when the last chunk comes."""
    model, tokenizer = real
    ids = tokenizer.encode(TEXT)[:600]
    whole = Branches(model, 600).forward([(0, 0, ids)])
    cache = Branches(model, 600)
    start = 400 if chunk == 1 else 0  # one token at a time takes a while
    if start:
        cache.forward([(0, 0, ids[:start])])
    for at in range(start, 600, chunk):
        last = cache.forward([(0, at, ids[at : at + chunk])])
    assert last.tobytes() == whole.tobytes()


_DIGEST = """
import hashlib
from concurrent.futures import ThreadPoolExecutor
from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch
from glassloop.ops.native.ops import NativeOps
model = ModelFiles(fetch("smollm2-135m-instruct")).transformer(NativeOps())
cache = Branches(model, 300)
digest = hashlib.sha256(cache.forward([(0, 0, list(range(500, 700)))], every_logit=True).tobytes())
for step in range(5):
    digest.update(cache.forward([(0, 200 + step, [17])]).tobytes())
with ThreadPoolExecutor(4) as callers:
    made = callers.map(lambda _: Branches(model, 64).forward([(0, 0, list(range(40)))]).tobytes(), range(12))
    (one,) = set(made)
digest.update(one)
print(model.ops.threads, model.ops.instructions, digest.hexdigest())
"""


def _digest(**environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _DIGEST],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_threads_do_not_matter():
    """Those of the pool, which several callers share."""
    one, two, five = (_digest(GLASSLOOP_THREADS=count) for count in ("1", "2", "5"))
    assert (one[0], two[0], five[0]) == ("1", "2", "5")
    assert one[2] == two[2] == five[2]


def test_the_pool_survives_a_fork_and_interpreter_exit():
    code = """
import os
from glassloop import LLM, Sampling
llm = LLM()
before = llm.generate("One two", Sampling(temperature=0, max_tokens=4)).token_ids
child = os.fork()
after = llm.generate("One two", Sampling(temperature=0, max_tokens=4)).token_ids
if child == 0:
    os._exit(0 if after == before else 1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0 and after == before
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"GLASSLOOP_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "fine\n" and done.returncode == 0, done.stderr


def test_two_models_in_two_threads_share_the_pool(real):
    from concurrent.futures import ThreadPoolExecutor

    model, tokenizer = real
    ids = tokenizer.encode(TEXT)[:40]
    expected = Branches(model, 64).forward([(0, 0, ids)]).tobytes()
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: Branches(model, 64).forward([(0, 0, ids)]).tobytes(), range(12)))
    assert made == [expected] * 12


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_makes_the_outputs_of_its_row_nan(instructions, value, fine):
    """Codes of 8 bits have no number for it."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((3, 96)).astype(np.float32)
    table[1, 70] = value
    ops = NativeOps()
    rows = ops.matrix(Tensor.of("table", table))
    weight = ops.matrix(Tensor.of("weight", rng.standard_normal((40, 96))).stored_as(FORMATS["Q8_0"]))

    def compute(batch, pages):
        x = ops.scale(ops.take(ops.embed(rows, batch.tokens), batch.wanted), 2.0)
        return ops.head(x, weight) if fine else ops.linear(x, weight, None)

    pages = ops.cache([CacheSpec(1, 1, 8)], 1 << 20)
    span = np.zeros((1, 1), np.int32)
    outputs = ops.program(compute)(Batch.of([(span, 0, [0, 1, 2])], [3]), pages)
    assert np.isnan(outputs[1]).all() and np.isfinite(outputs[[0, 2]]).all()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_models_of_odd_sizes_equal_the_reference(seed):
    check(seed)


def test_rows_are_the_same_with_several_threads():
    """Tests about rows that several threads compute; a worker of pytest has one (conftest.py)."""
    tests = (
        "model/test_layers.py::test_layers_of_different_kinds_and_sizes_make_one_model",
        "decode/test_decoder.py::test_what_other_rows_ask_for_does_not_matter",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *(str(Path(__file__).parents[1] / name) for name in tests)],
        env=os.environ | {"GLASSLOOP_THREADS": "2"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_no_byte_out_of_bounds_and_nothing_undefined():
    """The same under AddressSanitizer and UBSan, on every instruction set of this machine; choices with
    chains of all stages; and batches and rules that must be refused before a byte is touched."""
    from ops.bad_numbers import __file__ as bad
    from ops.random_chains import __file__ as chains
    from ops.random_models import __file__ as good

    for script, count in ((good, "12"), (chains, "12"), (bad, "6")):
        done = subprocess.run(
            [sys.executable, script, count],
            env=sanitized_environment(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0 and "portable fine" in done.stdout, done.stderr[-3000:]
