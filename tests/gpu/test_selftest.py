"""On a GPU: the self-test of the op set passes, and notices sums in another order."""

from __future__ import annotations

import logging

import pytest

from glassloop.ops.torch import has_device

if not has_device():
    pytest.skip("needs a GPU, torch and Triton", allow_module_level=True)

from glassloop.ops.torch import selftest
from glassloop.ops.torch.device import Device, default_device
from glassloop.ops.torch.ops import TorchOps


def test_rows_have_the_same_bits_in_every_tile():
    assert selftest.rows_differing(default_device()) == 0


def test_sums_in_another_order_are_noticed():
    def halves(x, weight, added, wide):
        """Adds up the columns of larger batches in two halves."""
        if len(x) == 1:
            return selftest._product(default_device(), x, weight, added, wide)
        parts = [part.contiguous() for part in (x[:, :1024], x[:, 1024:], weight[:, :1024], weight[:, 1024:])]
        return parts[0].float() @ parts[2].float().T + parts[1].float() @ parts[3].float().T + added

    assert selftest.rows_differing(default_device(), halves) > 100


def test_a_gpu_that_fails_is_named_in_the_record_and_in_words(monkeypatch, caplog):
    monkeypatch.setattr(selftest, "rows_differing", lambda device: 1)
    monkeypatch.setattr(Device, "remembered", lambda *_: None)
    monkeypatch.setattr(Device, "remember", lambda *_: False)
    selftest.exact.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert TorchOps().description.endswith("/inexact")
        assert "one request may have several" in caplog.text
    finally:
        selftest.exact.cache_clear()
