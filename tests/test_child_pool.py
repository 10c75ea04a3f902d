"""Threads share child processes: in turn, each job with its share, and none waits for ever."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from waiting import wait_until

from glassloop.util.child import Child, Patience
from glassloop.util.child_pool import ChildPool

ECHO = "def serve(parent):\n    while True:\n        parent.send(parent.receive())\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "echo.py"
    path.write_text(ECHO)
    return path


def pool_of(script: Path, most: int, most_per_job: int | None = None) -> ChildPool[str]:
    return ChildPool(lambda job: Child(script, {}), most, most_per_job)


def echo(child: Child, text: str) -> bytes | None:
    return child.ask(text.encode(), Patience(60), 1000)


def test_a_child_is_kept_for_the_next_caller_of_its_job(script: Path) -> None:
    pool = pool_of(script, 2)
    with pool.lend("a") as first:
        assert echo(first, "x") == b"x"
    with pool.lend("b") as other:
        assert other is not first
    with pool.lend("a") as second:
        assert second is first and echo(second, "y") == b"y"
    pool.close()
    assert not first.alive() and not other.alive() and not pool.children


def test_a_child_that_failed_its_caller_is_ended(script: Path) -> None:
    pool = pool_of(script, 1)
    with pytest.raises(ZeroDivisionError), pool.lend("a") as first:
        raise ZeroDivisionError
    assert not first.alive()
    with pool.lend("a") as second:
        assert echo(second, "x") == b"x"
    second.end()
    with pool.lend("a") as third:  # not one that has ended meanwhile
        assert echo(third, "x") == b"x"
    pool.close()


def test_there_are_no_more_children_than_allowed(script: Path) -> None:
    pool = pool_of(script, 2)
    for job in "abcab":
        with pool.lend(job) as child:
            assert echo(child, job) == job.encode()
            assert len(pool.children) <= 2
    pool.close()


def test_a_start_that_fails_leaves_its_place_to_others(script: Path) -> None:
    pool = ChildPool(lambda job: 1 // 0 or Child(script, {}), 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), pool.lend("a", 0.1):
            pass


def test_callers_are_served_in_the_order_in_which_they_came(script: Path) -> None:
    pool, order = pool_of(script, 1), list[str]()

    def wait(name: str) -> None:
        with pool.lend("a", 60):
            order.append(name)

    threads = []
    with pool.lend("a"):
        for name in ("first", "second"):
            threads.append(threading.Thread(target=wait, args=(name,)))
            threads[-1].start()
            wait_until(lambda: len(pool._queue) == len(threads))
        with pytest.raises(TimeoutError), pool.lend("a", 0.001):
            pass  # who does not get a child in time leaves the queue
    with pool.lend("a", 60):
        order.append("last")
    for thread in threads:
        thread.join()
    assert order == ["first", "second", "last"]
    with pool.lend("a", 0):
        pass
    pool.close()


def test_one_job_leaves_children_to_others(script: Path) -> None:
    pool = pool_of(script, 3, 2)
    with pool.lend("a"), pool.lend("a"):
        with pytest.raises(TimeoutError), pool.lend("a", 0.01):
            pass
        waiting = threading.Thread(target=lambda: pool.lend("a", 60).__enter__())
        waiting.start()
        wait_until(lambda: len(pool._queue) == 1)
        with pool.lend("b", 1) as other:  # though a caller of the other job came before
            assert echo(other, "x") == b"x"
    waiting.join()
    pool.close()
