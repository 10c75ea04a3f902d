"""How long a child process is waited for, with a clock of the test's own."""

from __future__ import annotations

import select
from types import SimpleNamespace

import pytest

from glassloop.util import child
from glassloop.util.child import Patience


class Clock:
    """A clock that moves while a pipe is waited for: each wait takes the next of these times, or all of its
    own. Nothing happens at the pipe until all of them have passed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *takes: float) -> None:
        self.now, self.takes = 0.0, list(takes)
        monkeypatch.setattr(child, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(child, "select", SimpleNamespace(poll=lambda: self))

    def register(self, pipe: int, event: int) -> None: ...

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        self.now += self.takes.pop(0) if self.takes else milliseconds / 1000
        return [] if self.takes or self.now < 1 else [(0, select.POLLIN)]


def test_a_time_in_which_this_process_stood_still_is_not_counted(monkeypatch):
    clock = Clock(monkeypatch, 30.0, 0.1, 600.0, 0.1, 0.01)
    Patience(1.0).wait(0, select.POLLIN)
    assert clock.now > 630


def test_patience_ends(monkeypatch):
    clock = Clock(monkeypatch, *[0.1] * 100)
    with pytest.raises(TimeoutError):
        Patience(2.0).wait(0, select.POLLIN)
    assert 1.99 < clock.now < 2.11


def test_a_child_that_is_always_late_does_not_wait_for_ever(monkeypatch):
    clock = Clock(monkeypatch, *[5.0] * 100)
    with pytest.raises(TimeoutError):
        Patience(2.0).wait(0, select.POLLIN)
    assert 50 <= clock.now <= 55  # each wait is counted as a fifth of a second


def test_all_messages_have_the_patience_together(monkeypatch):
    Clock(monkeypatch, *[0.1] * 100)
    patience = Patience(2.0)
    with pytest.raises(TimeoutError):
        patience.wait(0, select.POLLIN)
    with pytest.raises(TimeoutError):
        patience.wait(0, select.POLLOUT)
