"""Objects are left out of garbage collection only while an engine is busy."""

from __future__ import annotations

import gc
import weakref

from glassloop.engine import garbage
from glassloop.engine.garbage import Garbage


def test_objects_are_frozen_while_any_engine_is_busy():
    first, second = Garbage(), Garbage()
    assert gc.get_freeze_count() < 1000  # Python 3.12 has some hundred of its own
    first.busy()
    second.busy()
    first.busy()
    assert gc.get_freeze_count() > 10_000
    first.idle()
    assert gc.get_freeze_count() > 10_000
    second.idle()
    second.idle()
    assert gc.get_freeze_count() < 1000  # Python 3.12 has some hundred of its own


def test_what_dies_meanwhile_is_collected_now_and_then(monkeypatch):
    class Node:
        itself: Node

    node = Node()
    node.itself = node
    gone, engine = weakref.ref(node), Garbage()
    engine.busy()
    try:
        del node
        gc.collect()
        engine.busy()
        assert gone() is not None
        monkeypatch.setattr(garbage, "_OFTEN", 0.0)
        engine.busy()
        assert gone() is None and gc.get_freeze_count() > 10_000
    finally:
        engine.idle()


def test_objects_that_the_program_has_frozen_stay_so():
    gc.freeze()
    try:
        engine = Garbage()
        engine.busy()
        engine.idle()
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()


def test_what_a_collection_has_left_is_left_out_of_the_next_ones(monkeypatch):
    class Node:
        itself: Node

    engine = Garbage()
    engine.busy()
    try:
        kept, dropped = Node(), Node()
        kept.itself, dropped.itself = kept, dropped
        gone, later = weakref.ref(dropped), weakref.ref(kept)
        frozen = gc.get_freeze_count()
        del dropped
        gc.collect()
        assert gone() is None and gc.get_freeze_count() > frozen
        del kept
        gc.collect()
        engine.busy()
        assert later() is not None
        monkeypatch.setattr(garbage, "_MOST", 2)
        engine.busy()
        assert later() is None
    finally:
        engine.idle()
    assert garbage._freeze_survivors not in gc.callbacks
