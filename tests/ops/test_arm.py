"""The kernels for ARM, cross-compiled and run under an emulator: the bits of this machine's kernels.

Skipped without the compiler `aarch64-linux-gnu-gcc` and the emulator `qemu-aarch64` (Debian's packages
gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user). GLASSLOOP_TEST_TOKENS says how many tokens of the
real models are computed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from ops.random_models import random_model
from ops.recording import RecordingOps, write_recording

from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch
from glassloop.model.transformer import Transformer
from glassloop.ops.native import library

TOKENS = int(os.environ.get("GLASSLOOP_TEST_TOKENS", "12"))
ARM = ("portable", "neon", "dotprod", "i8mm")
_CROSS, _EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
_FLAGS = ("-std=gnu11", "-O2", "-ffp-contract=off", "-fno-math-errno", "-pthread", "-Wno-psabi")

pytestmark = pytest.mark.skipif(
    not (shutil.which(_CROSS) and shutil.which(_EMULATOR) and shutil.which("cc")),
    reason="no cross compiler or emulator for ARM",
)


@pytest.fixture(scope="module")
def drivers(tmp_path_factory):
    """The command lines of the driver, for this machine and for ARM."""
    folder, sources = tmp_path_factory.mktemp("driver"), Path(library.__file__).parent
    files = [str(Path(__file__).with_name("driver.c")), *map(str, sorted(sources.glob("*.c")))]
    made = []
    for compiler, name, extra in (("cc", "here", ()), (_CROSS, "arm", ("-static",))):
        command = [compiler, *_FLAGS, *extra, f"-I{sources}", *files, "-o", str(folder / name), "-lm"]
        subprocess.run(command, check=True)
        made.append(str(folder / name))
    return [made[0]], [_EMULATOR, "-cpu", "max", made[1]]


def _run(driver: list[str], instructions: str, file: Path) -> bytes:
    return subprocess.run([*driver, instructions, str(file)], check=True, capture_output=True).stdout


def _check(drivers: tuple[list[str], list[str]], file: Path, logits: list[bytes]) -> None:
    here, arm = drivers
    expected = _run(here, "", file)
    assert expected.startswith(logits[0]), "the driver computes what Python computes"
    for instructions in ARM:
        assert _run(arm, instructions, file) == expected, f"{instructions} differs"


@pytest.mark.parametrize("seed", range(6))
def test_random_models_on_arm_have_the_same_bits(seed, drivers, tmp_path):
    rng = np.random.default_rng(seed)
    config, weights = random_model(rng)
    model = Transformer(config, weights, RecordingOps())
    branches = int(rng.integers(1, 5))
    prompts = [rng.integers(0, config.vocab_size, rng.integers(1, 70)).tolist() for _ in range(branches)]
    works = [
        [(b, 0, ids) for b, ids in enumerate(prompts)],
        [(b, len(ids), [ids[0]]) for b, ids in enumerate(prompts)],
    ]
    _check(
        drivers, tmp_path / "recording", write_recording(tmp_path / "recording", model, works, 96, branches)
    )


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma-3-270m"])
def test_real_models_on_arm_have_the_same_bits(name, drivers, tmp_path):
    """A text in chunks of several sizes, the last one token."""
    files = ModelFiles(fetch(name))
    text = "The sea was calm that morning, and the fishermen had already gone out when the bell rang. " * 40
    ids = files.tokenizer().encode(text)[:TOKENS]
    cuts = sorted({0, 1, len(ids) // 3, len(ids) - 1, len(ids)})
    works = [[(0, start, ids[start:stop])] for start, stop in pairwise(cuts)]
    model = files.transformer(RecordingOps())
    file = tmp_path / "recording"
    _check(drivers, file, write_recording(file, model, works, len(ids), 1))
