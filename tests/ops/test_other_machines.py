"""The kernels for processors that this machine is not: the bits of this machine's own kernels.

Those for ARM are cross-compiled and run under an emulator: skipped without the compiler
`aarch64-linux-gnu-gcc` and the emulator `qemu-aarch64` (Debian's packages gcc-aarch64-linux-gnu,
libc6-dev-arm64-cross and qemu-user). Those for AVX-VNNI are compiled with the instructions of AVX-512 that do
the same. GLASSLOOP_TEST_TOKENS says how many tokens of the real models are computed.

With GLASSLOOP_ARM_PYTHON, the folder that arm_python.sh makes, the whole program runs under the emulator too:
`make test-arm`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from ops.built import built
from ops.random_adapters import random_adapter
from ops.random_models import random_model
from ops.recording import RecordingOps, write_recording

import glassloop
from glassloop import LLM, Sampling
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch
from glassloop.model.transformer import Transformer
from glassloop.ops.native import library

TOKENS = int(os.environ.get("GLASSLOOP_TEST_TOKENS", "3"))
ARM = ("portable", "neon", "dotprod", "i8mm")
_CROSS, _EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
_FLAGS = ("-std=gnu11", "-O2", "-ffp-contract=off", "-fno-math-errno", "-pthread", "-Wno-psabi")
_SOURCES = Path(library.__file__).parent
# Changes of the sources that let AVX-VNNI run on a machine with AVX-512.
_WITH_AVX512 = {
    "kernels_avxvnni.c": {"f16c,avxvnni": "f16c,avx512vnni,avx512vl"},
    "program.c": {"avx2 && has_avxvnni()": "avx2 + 0 * has_avxvnni()"},
    "simd.h": {f"_mm256_{name}_avx_epi32": f"_mm256_{name}_epi32" for name in ("dpbusd", "dpwssd")},
}


def _build(compiler: str, sources: Sequence[Path], extra: Sequence[str]) -> str:
    files = [Path(__file__).with_name("driver.c"), *sources]
    return str(built(compiler, (*_FLAGS, *extra), files, include=[_SOURCES]))


def _build_here(instead: Sequence[Path] = ()) -> str:
    """Builds the driver for this machine with the library that is installed. What the files of `instead`
    define takes the place of what the library has under the same names."""
    if not shutil.which("cc") or not library.FILE.exists():
        pytest.skip("no C compiler")
    return _build("cc", instead, [str(library.FILE), f"-Wl,-rpath,{library.FILE.parent}", "-rdynamic"])


@pytest.fixture(scope="module")
def here():
    """The command line of the driver, for this machine."""
    return [_build_here()]


@pytest.fixture(scope="module")
def arm():
    """The command line of the driver for ARM, under the emulator."""
    if not (shutil.which(_CROSS) and shutil.which(_EMULATOR)):
        pytest.skip("no cross compiler or emulator for ARM")
    return [_EMULATOR, "-cpu", "max", _build(_CROSS, sorted(_SOURCES.glob("*.c")), ["-static"])]


@pytest.fixture(scope="module")
def avxvnni(tmp_path_factory):
    """The command line of a driver whose AVX-VNNI kernels use the instructions of AVX-512 VNNI."""
    if not library.library().gl_select_kernels(b"avx512"):
        pytest.skip("this machine has no AVX-512")
    library.library().gl_select_kernels(os.environ.get("GLASSLOOP_ISA", "").encode())
    folder = tmp_path_factory.mktemp("avxvnni")
    for header in _SOURCES.glob("*.h"):  # a header includes those beside it
        shutil.copy(header, folder)
    for name, changes in _WITH_AVX512.items():
        text = (_SOURCES / name).read_text()
        for before, after in changes.items():
            assert before in text
            text = text.replace(before, after)
        (folder / name).write_text(text)
    return [_build_here(sorted(folder.glob("*.c")))]


def _run(driver: list[str], instructions: str, file: Path) -> bytes:
    return subprocess.run([*driver, instructions, str(file)], check=True, capture_output=True).stdout


def _random(seed: int, file: Path, format: str | None = None) -> bytes:
    """Records a random model with two batches, those of odd seeds with adapters. Returns the logits of the
    first."""
    rng = np.random.default_rng(seed)
    config, weights = random_model(rng, format)
    model = Transformer(config, weights, RecordingOps())
    branches = int(rng.integers(1, 5))
    prompts = [rng.integers(0, config.vocab_size, rng.integers(1, 70)).tolist() for _ in range(branches)]
    works = [
        [(b, 0, ids) for b, ids in enumerate(prompts)],
        [(b, len(ids), [ids[0]]) for b, ids in enumerate(prompts)],
    ]
    adapters = []
    if seed % 2:
        for _ in range(2):
            model.load_adapter(random_adapter(rng, config))
        adapters = [rng.integers(0, 3, sum(len(ids) for _, _, ids in work)).tolist() for work in works]
        adapters = [[*of[:-1], 1] for of in adapters]  # some row has one
    return write_recording(file, model, works, 96, branches, adapters)[0]


def _real(name: str, file: Path) -> bytes:
    """Records a real model with a text in chunks of several sizes, the last one token."""
    files = ModelFiles(fetch(name))
    text = "The sea was calm that morning, and the fishermen had already gone out when the bell rang. " * 40
    ids = files.tokenizer().encode(text)[:TOKENS]
    more = {1, len(ids) // 3} if len(ids) > 3 else set()
    cuts = sorted({0, len(ids) - 1, len(ids)} | more)
    works = [[(0, start, ids[start:stop])] for start, stop in pairwise(cuts)]
    return write_recording(file, files.transformer(RecordingOps()), works, len(ids), 1)[0]


def _check(here: list[str], driver: list[str], names: Sequence[str], file: Path, logits: bytes) -> None:
    expected = _run(here, "", file)
    assert expected.startswith(logits), "the driver computes what Python computes"
    for name in names:
        assert _run(driver, name, file) == expected, f"{name} differs"


@pytest.mark.parametrize("seed", range(6))
def test_random_models_on_arm_have_the_same_bits(seed, here, arm, tmp_path):
    _check(here, arm, ARM, tmp_path / "recording", _random(seed, tmp_path / "recording"))


# One format for each way in which codes of a table and their scales are stored: docs/ops.md.
@pytest.mark.parametrize("format", ["IQ4_NL", "NVFP4", "MXFP4", "IQ4_XS", "IQ2_XS", "Q2_K", "TQ2_0"])
def test_table_formats_on_arm_have_the_same_bits(format, here, arm, tmp_path):
    _check(here, arm, ARM, tmp_path / "recording", _random(0, tmp_path / "recording", format))


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma-3-270m"])
def test_real_models_on_arm_have_the_same_bits(name, here, arm, tmp_path):
    _check(here, arm, ARM, tmp_path / "recording", _real(name, tmp_path / "recording"))


@pytest.mark.parametrize("seed", range(20))
def test_random_models_on_avxvnni_have_the_same_bits(seed, here, avxvnni, tmp_path):
    _check(here, avxvnni, ["avxvnni"], tmp_path / "recording", _random(seed, tmp_path / "recording"))


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma-3-270m"])
def test_real_models_on_avxvnni_have_the_same_bits(name, here, avxvnni, tmp_path):
    _check(here, avxvnni, ["avxvnni"], tmp_path / "recording", _real(name, tmp_path / "recording"))


# ── the whole program on ARM ───────────────────────────────────────────────────────────────────────────────

ARM_PYTHON = os.environ.get("GLASSLOOP_ARM_PYTHON")
_REPLAY = """
import platform, sys
from glassloop import LLM, Run
from glassloop.ops.native.library import library
run, llm = Run.load(sys.argv[1]), LLM(kv_memory="100MB")
verdict = llm.replay(run)
assert verdict.notes == (), verdict.notes
print(platform.machine(), library().gl_name().decode(), run.ops, verdict, sep=", ")
"""


@pytest.fixture(scope="module")
def glass_file(tmp_path_factory):
    """A run that this machine made with its best kernels. A stage without a rule makes NumPy compute too."""
    file = tmp_path_factory.mktemp("made") / "made.glass"
    options = {"temperature": 0.9, "top_p": 0.95, "typical_p": 0.9, "seed": 3, "logprobs": 5}
    with LLM(kv_memory="100MB") as llm:
        run = llm.generate("The sea was calm that morning, and", Sampling(**options, max_tokens=TOKENS))
    run.save(file)
    return file


@pytest.fixture(scope="module")
def arm_library():
    return built(_CROSS, (*_FLAGS, "-shared", "-fPIC"), sorted(_SOURCES.glob("*.c")))


@pytest.mark.skipif(not ARM_PYTHON, reason="GLASSLOOP_ARM_PYTHON names no Python for ARM")
@pytest.mark.parametrize("instructions", ARM)
def test_a_glass_file_of_this_machine_replays_identical_on_arm(instructions, glass_file, arm_library):
    folder = Path(ARM_PYTHON or "").resolve()
    done = subprocess.run(
        [_EMULATOR, *("-cpu", "max"), "-L", folder / "root", folder / "python", "-c", _REPLAY, glass_file],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(Path(glassloop.__file__).parents[1])]),
            "GLASSLOOP_LIBRARY": str(arm_library),
            "GLASSLOOP_ISA": instructions,
            "GLASSLOOP_THREADS": "1",
        },
        capture_output=True,
        text=True,
    )
    verdict = f"aarch64, {instructions}, native arithmetic 2, identical, {TOKENS} of {TOKENS} tokens\n"
    assert done.stdout == verdict, done.stderr[-2000:]
