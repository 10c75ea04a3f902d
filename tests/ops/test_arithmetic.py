"""One arithmetic on every processor: the instruction sets of this machine give the same logits, hidden states
and records, bit for bit, on random models, random batches and the real models. docs/ops.md defines it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.random_models import random_model

from glassloop import Sampling
from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder, choose_rows
from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch
from glassloop.model.transformer import Transformer
from glassloop.ops.native import library
from glassloop.ops.native import rows as native_rows
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.quant import Float32

# How many tokens of each real model are compared. The portable kernels take their time.
TOKENS = int(os.environ.get("GLASSLOOP_TEST_TOKENS", "12"))

SAMPLINGS = [
    Sampling(temperature=0, logprobs=5),
    Sampling(temperature=0.7, top_p=0.9, logprobs=5),
    Sampling(temperature=1.5, min_p=0.02, top_k=20, repetition_penalty=1.2),
    Sampling(temperature=1.0, epsilon_cutoff=0.001, presence_penalty=0.5, frequency_penalty=0.3),
]


def instruction_sets() -> list[str]:
    native = library.library()
    best = native.gl_name()
    found = [name for name in library.INSTRUCTION_SETS if native.gl_select_kernels(name.encode())]
    native.gl_select_kernels(best)
    return found


def on_each(compute: Callable[[], bytes]) -> Iterator[tuple[str, bytes]]:
    """Yields what a function returns on each instruction set of this machine."""
    native = library.library()
    best = native.gl_name()
    try:
        for name in instruction_sets():
            native.gl_select_kernels(name.encode())
            yield name, compute()
    finally:
        native.gl_select_kernels(best)


def check_equal(compute: Callable[[], bytes]) -> None:
    made = dict(on_each(compute))
    assert len(made) > 1, "this machine has a single instruction set"
    wrong = [name for name, answer in made.items() if answer != made["portable"]]
    assert not wrong, f"{wrong} differ from portable"


def records(logits: Float32, prompt: list[int]) -> bytes:
    """Returns every number of the records that some samplings make of rows of logits."""
    made: list[str] = []
    for sampling in SAMPLINGS:
        decoders = [
            Decoder(sampling, logits.shape[1], seed, prompt, ops=native_rows) for seed in range(len(logits))
        ]
        for chosen in choose_rows(decoders, logits.copy()):
            made.append(repr(chosen if isinstance(chosen, Chosen) else str(chosen)))
    return "\n".join(made).encode()


def answers(model: Transformer, prompts: list[list[int]]) -> bytes:
    """Returns the bytes of logits and hidden states of prompts in one batch, of a step after it, and of the
    records made from these."""
    cache = Branches(model, 256, branches=len(prompts))
    every = cache.forward([(b, 0, ids) for b, ids in enumerate(prompts)], every_logit=True)
    step = cache.forward([(b, len(ids), [ids[0]]) for b, ids in enumerate(prompts)])
    hidden = model.hidden(cache.batch([(0, 0, prompts[0])], every_logit=True), cache.pages)
    assert np.isfinite(every).all()
    return b"".join([every.tobytes(), step.tobytes(), hidden.tobytes(), records(step, prompts[0])])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_models_and_batches_have_one_answer(seed):
    def compute() -> bytes:
        rng = np.random.default_rng(seed)
        config, weights = random_model(rng)
        model = Transformer(config, weights, NativeOps())
        prompts = [
            rng.integers(0, config.vocab_size, rng.integers(1, 90)).tolist()
            for _ in range(int(rng.integers(1, 6)))
        ]
        return answers(model, prompts)

    check_equal(compute)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_rows_of_any_logits_have_one_record(seed):
    rng = np.random.default_rng(seed)
    rows, width = int(rng.integers(1, 4)), int(rng.integers(1, 9000))
    logits = (rng.standard_normal((rows, width)) * 10 ** rng.uniform(-3, 2.5)).astype(np.float32)
    logits[rng.random((rows, width)) < rng.choice([0, 0.3])] = -np.inf
    logits[:, 0] = rng.choice([0, 50, 700])
    scale = float(rng.uniform(0.2, 3))

    def compute() -> bytes:
        sums = [repr(native_rows.log_sum_exp(row, scale)) for row in logits]
        sums += [repr(native_rows.summarize(row, min(9, width))) for row in logits]
        return records(logits, [0]) + repr(sums).encode()

    check_equal(compute)


def _child(instructions: str, code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"GLASSLOOP_ISA": instructions},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


_MAKE = """
import sys
from glassloop import LLM, Sampling
llm = LLM()
options = {"temperature": 0.9, "top_p": 0.95, "typical_p": 0.9, "seed": 3, "logprobs": 5}
sampling = Sampling(**options, max_tokens=int(sys.argv[2]))
llm.generate("The sea was calm that morning, and", sampling).save(sys.argv[1])
"""

_REPLAY = """
import sys
from glassloop import LLM, Run
run, llm = Run.load(sys.argv[1]), LLM()
verdict = llm.replay(run)
assert verdict.notes == (), verdict.notes
assert llm.fork(run, 3, max_tokens=5).ops == run.ops
print(run.ops, verdict)
"""


def test_a_glass_file_replays_identical_on_every_instruction_set(tmp_path):
    """The run uses a stage that has no rule, so a part of it is computed in NumPy."""
    file = str(tmp_path / "made.glass")
    _child("", _MAKE, file, str(TOKENS))
    for instructions in instruction_sets():
        said = _child(instructions, _REPLAY, file)
        assert said.startswith("native arithmetic 2 identical,"), f"{instructions}: {said}"


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma-3-270m"])
def test_real_models_have_one_answer(name):
    """A prompt in two chunks, then one token after another, each chosen with luck."""
    files = ModelFiles(fetch(name))
    tokenizer = files.tokenizer()
    prompt = tokenizer.encode("The sea was calm that morning, and the fishermen had already gone out when")

    def compute() -> bytes:
        model = files.transformer(NativeOps())
        cache = Branches(model, len(prompt) + TOKENS)
        decoder = Decoder(SAMPLINGS[1], model.config.vocab_size, 7, prompt, ops=native_rows)
        cache.forward([(0, 0, prompt[:5])])
        logits, digest = cache.forward([(0, 5, prompt[5:])]), hashlib.sha256()
        for position in range(len(prompt), len(prompt) + TOKENS):
            chosen = decoder.choose(logits[0])
            digest.update(logits.tobytes() + repr(chosen).encode())
            decoder.commit(chosen.id)
            logits = cache.forward([(0, position, [chosen.id])])
        return digest.digest()

    check_equal(compute)
