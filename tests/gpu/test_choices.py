"""On a GPU: tokens chosen there have the records that the native op set would have made, bit for bit."""

from __future__ import annotations

import os

import numpy as np
import pytest

from glassloop.ops.torch import has_device

if not has_device():
    pytest.skip("needs a GPU, torch and Triton", allow_module_level=True)

from ops.device_choices import differences
from ops.random_choices import random_lines, random_rows

from glassloop.ops.torch.chooser import DeviceChooser
from glassloop.ops.torch.device import default_device

ROWS = int(os.environ.get("GLASSLOOP_GPU_ROWS", "20000")) // 20


@pytest.mark.parametrize("width", [50, 1000, 32000, 49152, 128256, 151936, 262144])
def test_a_choice_has_the_same_record_on_the_device(width):
    rng, chooser = np.random.default_rng(width), DeviceChooser(default_device())
    done = 0
    while done < ROWS // 7:
        rows = int(rng.choice([1, 3, 64]))
        x, lines = random_rows(rng, rows, width), random_lines(rng, rows, width)
        assert differences(chooser, x, lines) == []
        done += rows
