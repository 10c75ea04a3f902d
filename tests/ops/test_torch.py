"""The torch op set without a GPU: its kernels run by Triton's interpreter against the reference, and compiled
for several architectures. `tests/gpu` runs them on a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("triton") is None, reason="needs torch and Triton: make test-gpu"
)
CHECKS = (
    *(
        "models",
        "batches",
        "adapters",
        "units",
        "keeping",
        "holes",
        "filled",
        "graphs",
        "lenses",
        "refused",
        "choices",
    ),
    "cuts",
    "beyond",
    "ahead",
    "memory",
    "packed",
    "small_floats",
    "wide",
    "slices",
    "packed_linear",
)


_WITHOUT_LIBRARY = """
import torch
from glassloop.decode.decoder import Decoder, choose_rows
from glassloop.decode.sampling import Sampling
from glassloop.ops import choose_ops
from glassloop.ops.torch.device import default_device
from glassloop.ops.torch.device_rows import DeviceRows
rows = choose_ops("torch").rows
values = torch.tensor([[0.0, 9.0, 1.0, 2.0], [0.0, 1.0, 9.0, 2.0]])
options = Sampling(temperature=0.1, top_p=0.9, repetition_penalty=1.1, seed=1)
decoders = [Decoder(options, 4, 1, [0], ops=rows) for _ in values]
chosen = choose_rows(decoders, DeviceRows(values, default_device(), lambda: 0))
print(rows.start, [each.id for each in chosen])
"""


@pytest.fixture(scope="module")
def errors() -> dict[str, str]:
    """What went wrong, by check. One process runs all of them: importing torch takes longer than most."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "ops.torch_interpreted"],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("check", CHECKS)
def test_the_kernels_compute_what_the_reference_does(check, errors):
    assert check not in errors, errors[check]


def test_without_the_c_library_the_stages_choose(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_LIBRARY],
        env=os.environ
        | {
            "TRITON_INTERPRET": "1",
            "GLASSLOOP_LIBRARY": str(tmp_path / "was-not-built.so"),
        },
        capture_output=True,
        text=True,
    )
    assert done.stdout == "None [1, 2]\n", done.stderr


def test_no_check_is_left_out(errors):
    source = (Path(__file__).parent / "torch_interpreted.py").read_text()
    written = [line[10:].split("(")[0] for line in source.splitlines() if line.startswith("def check_")]
    assert written == [*CHECKS]


@pytest.mark.parametrize(
    ("architecture", "rows"),
    [(80, (16, 2048)), (89, (16, 2048)), (90, (16, 32, 64, 128, 256, 2048)), (100, (16, 2048)), (120, (16,))],
)
def test_the_kernels_compile_and_fit_the_shared_memory(architecture, rows):
    from ops.torch_compiled import SHARED_MEMORY, compiled, variants

    for kernel, constants, options in variants(architecture, rows):
        made = compiled(kernel, architecture, constants, **options)
        assert made.metadata.shared <= SHARED_MEMORY[architecture], (kernel.__name__, constants)
        # The tensor cores are given columns that follow each other, as they are in a matrix of half floats.
        assert {*re.findall(r"kWidth = (\d+)", made.asm["ttgir"])} <= {"2"}, (kernel.__name__, constants)


def test_no_wait_stands_between_the_instructions_of_a_product(tmp_path):
    """The assembler puts a wait behind every instruction of a product whose sums are read too early, and says
    so. This had cost a third of the time of attention."""
    import triton
    from ops.torch_compiled import compiled, variants

    tested = []
    for kernel, constants, options in variants(90, (2048,)):
        if kernel.__name__ not in ("attend_kernel", "wide_linear_kernel"):
            continue
        code = tmp_path / "kernel.ptx"
        code.write_text(compiled(kernel, 90, constants, **options).asm["ptx"])
        command = [triton.knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", code, "-o", tmp_path / "kernel"]
        said = subprocess.run(command, capture_output=True, text=True)
        assert said.returncode == 0 and "serialized" not in said.stderr, (kernel.__name__, constants)
        tested.append(kernel.__name__)
    assert {*tested} == {"attend_kernel", "wide_linear_kernel"}
