"""Random rows of logits, random chains of built-in stages, and their definition: the same stages in NumPy.

Run as a program it compares many of them, some on each instruction set: the sanitizers' test does that.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from glassloop.decode.chain import DEFAULT_ORDER
from glassloop.decode.decoder import Decoder
from glassloop.decode.sampling import Sampling
from glassloop.errors import GlassloopError
from glassloop.ops.native import library
from glassloop.ops.native import rows as native
from glassloop.ops.quant import Float32
from glassloop.ops.rows import RowOps

# One choice has no record of earlier ones.
WITHOUT_MEMORY = [name for name in DEFAULT_ORDER if name != "mirostat"]
# The functions over rows of the native op set, without its chooser: decoding runs the stages in NumPy.
BY_DEFINITION: Any = SimpleNamespace(
    chooser=None,
    start=None,
    host=native.host,
    summarize=native.summarize,
    highest=native.highest,
    log_sum_exp=native.log_sum_exp,
    rank_of=native.rank_of,
)
SIZES = (1, 2, 3, 20, 63, 64, 65, 130, 512, 513, 1100, 4096, 9000)


def random_logits(rng: np.random.Generator, size: int) -> Float32:
    """A row that is flat, peaked, full of ties, mostly removed, huge, tiny or like a model's."""
    kind = int(rng.integers(9))
    x = rng.normal(0, 2, size)
    if kind == 0:
        x *= rng.choice([0.005, 0.05, 0.5, 5])
    elif kind == 1:
        x = np.round(x) * rng.choice([1, 0.1])
    elif kind == 2:
        x[rng.random(size) < rng.choice([0.5, 0.99])] = -np.inf
        x[rng.integers(size)] = 0.0
    elif kind == 3:
        x[:] = x[0]
    elif kind == 4:
        x *= 5e3
    elif kind == 5:
        x *= 10.0 ** rng.uniform(-44, -36)
    elif kind == 6:
        x = rng.choice([0.0, -0.0, 1e-40, -1e-40, 1.0], size)
    elif kind == 7:
        x[rng.integers(0, size, 20)] += rng.exponential(8, 20)
    else:
        x = rng.gumbel(0, 2, size)
    return x.astype(np.float32)


def random_sampling(rng: np.random.Generator, size: int) -> Sampling:
    """A request with many stages in any order. One of them is about the whole row, as XTC is."""
    often = rng.choice([0.1, 0.3, 0.6])
    ids = rng.integers(0, size, 100).tolist()
    options: dict[str, Any] = {
        "top_k": int(rng.choice([1, 5, 64, 300, 1000, 5000])),
        "top_p": float(rng.choice([1e-6, 0.5, 0.9, 0.95, 0.999, 0.9999999])),
        "min_p": float(rng.choice([1e-30, 1e-4, 0.01, 0.5, 1])),
        "typical_p": float(rng.choice([1e-9, 0.1, 0.5, 0.95, 0.999])),
        "top_n_sigma": float(rng.choice([0.3, 1, 2, 4])),
        "epsilon_cutoff": float(rng.choice([1e-9, 1e-5, 1e-3, 0.2])),
        "eta_cutoff": float(rng.choice([1e-9, 1e-5, 1e-3, 0.2])),
        "repetition_penalty": float(rng.choice([0.5, 1.1, 2])),
        "presence_penalty": float(rng.choice([-1, 0.5])),
        "frequency_penalty": float(rng.choice([-0.3, 0.5])),
        "no_repeat_ngram_size": int(rng.integers(1, 4)),
        "dry_multiplier": 0.8,
        "logit_bias": {ids[0]: 5.0, ids[1]: -3.0},
        "bad_words": [[ids[2]], [ids[3], ids[4]]],
        "allowed_token_ids": ids[: int(rng.choice([4, 64, 100]))],
        "stages": rng.permutation(WITHOUT_MEMORY).tolist(),
    }
    wanted = {name: value for name, value in options.items() if rng.random() < often}
    if rng.random() < 0.7:
        wanted.pop("allowed_token_ids", None)
    temperature = float(rng.choice([0, 0.1, 0.7, 1, 2, 5, 100]))
    chance, threshold = float(rng.choice([1e-9, 1])), float(rng.choice([1e-6, 1e-4, 0.01, 0.3]))
    return Sampling.from_dict(
        {"temperature": temperature, "xtc_probability": chance, "xtc_threshold": threshold, "logprobs": 9}
        | wanted
    )


def record_of(
    logits: Float32, sampling: Sampling, prompt: list[int], answer: list[int], seed: int, ops: RowOps
) -> bytes | str:
    """Returns the records of the chosen token and of a forced one, or why there is none."""
    decoder = Decoder(sampling, len(logits), seed, prompt, eos_ids=(0,), ops=ops)
    for token in answer:
        decoder.commit(token)
    try:
        return decoder.choose(logits).data + decoder.record_forced(logits, seed % len(logits)).data
    except GlassloopError as error:
        return str(error)


def check_chain(seed: int, sizes: tuple[int, ...] = SIZES) -> bool:
    """Compares one random choice with its definition. Returns whether there was one."""
    rng = np.random.default_rng(seed)
    size = int(rng.choice(sizes))
    logits, sampling = random_logits(rng, size), random_sampling(rng, size)
    kinds, length = (min(size, 6), 12) if rng.random() < 0.6 else (size, 600)
    prompt = rng.integers(0, kinds, rng.integers(1, length)).tolist()
    answer = rng.integers(0, kinds, rng.integers(0, length)).tolist()
    before = logits.tobytes()
    made, expected = (
        record_of(logits, sampling, prompt, answer, seed, ops) for ops in (native, BY_DEFINITION)
    )
    assert made == expected, f"seed {seed}: {made!r:.200} is not {expected!r:.200}"
    assert logits.tobytes() == before, f"seed {seed}: the row was changed"
    return isinstance(made, bytes)


if __name__ == "__main__":
    native_library = library.library()
    sets = [name for name in library.INSTRUCTION_SETS if native_library.gl_select_kernels(name.encode())]
    for first, name in enumerate(sets):
        native_library.gl_select_kernels(name.encode())
        for number in range(first, 25 * int(sys.argv[1]), len(sets)):
            check_chain(number)
        print(name, "fine", flush=True)
