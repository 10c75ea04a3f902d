"""Real replicas in this process instead of in Ray's: quick, and they die or fall silent as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any

from glassloop import LLM
from glassloop.cluster.board import Board
from glassloop.cluster.messages import Bulletin, Gone, Job, Question, Reply
from glassloop.cluster.replica import Replica
from glassloop.engine.protocol import Statistics


def in_pieces(bulletin: Bulletin) -> list[Bulletin]:
    """Returns a bulletin as several with one token each: the model is so quick that one has many. A replica
    sends the last token of a run together with the end, so they stay together."""
    made = [Bulletin([], bulletin.report)]
    for news in bulletin.news:
        for place, token in enumerate(news.tokens[:-1]):
            prompt = news.prompt if place == 0 else []
            part = news._replace(tokens=[token], prompt=prompt, end=None, taken_back=None, pass_record=None)
            made.append(Bulletin([part], None))
        rest = news._replace(tokens=news.tokens[-1:], prompt=[] if len(news.tokens) > 1 else news.prompt)
        made.append(Bulletin([rest], None))
    return made


class LocalTransport:
    def __init__(self, model: str, names: tuple[str, ...] = ("a", "b"), **options: Any) -> None:
        self.board = Board()
        self._model, self._options = model, {"kv_memory": "8MB", **options}
        self.replicas: dict[str, Replica] = {}
        self.gone: dict[str, asyncio.Event] = {}
        self.silent: set[str] = set()
        self.jobs: list[tuple[str, Job]] = []
        self.asked: list[tuple[str, Question]] = []
        self.by_turns = False  # route round robin, to compare with
        for name in names:
            self.add(name)

    def add(self, name: str, **options: Any) -> None:
        given = {**self._options, **options}
        holes = given.pop("holes", None)
        llm = LLM(self._model, **given)
        if holes is not None:
            llm.load_holes(holes)
        self.replicas[name] = Replica(name, llm)
        self.gone[name] = asyncio.Event()
        self.board.set_replicas(self.replicas)

    def kill(self, name: str) -> None:
        """Ends a replica as kill -9 does: whatever it has not told is lost."""
        self.gone[name].set()
        del self.replicas[name]

    def drain(self, name: str) -> None:
        """Takes a replica out of those that get requests; it goes on until it is killed."""
        self.board.set_replicas(set(self.board.replicas) - {name})

    async def start(self, job: Job) -> None:
        while True:
            ranked = [name for name in self.board.rank(job.route) if name in self.board.replicas]
            if ranked:
                break
            await asyncio.sleep(0.01)
        name = sorted(ranked)[len(self.jobs) % len(ranked)] if self.by_turns else ranked[0]
        self.jobs.append((name, job))
        self.board.on_routed(job.key, name)
        await self._unless_gone(name, lambda replica: replica.start(job))

    async def cancel(self, replica: str, key: str, session: str, run: int | None = None) -> None:
        self.replicas[replica].cancel(key, session, run)

    async def ask(self, question: Question) -> AsyncIterator[Reply]:
        ranked = self.board.rank(question.route)
        if not ranked:
            raise Gone("nothing is there")
        name = ranked[0]
        self.asked.append((name, question))
        self.board.on_routed(question.route.key, name)
        replies = self.replicas[name].ask(question) if name in self.replicas else None
        if replies is None:
            raise Gone(f"{name} has died")
        try:
            while True:
                reply = await self._unless_gone(name, lambda replica: anext(replies, None))
                while name in self.silent:
                    await asyncio.sleep(0.01)
                if reply is None:
                    break
                yield reply
        finally:
            await replies.aclose()

    async def open(self, replica: str, session: str) -> AsyncIterator[Bulletin]:
        if replica not in self.replicas:
            raise Gone(f"{replica} has died")
        async for bulletin in self.replicas[replica].open(session):
            for each in in_pieces(bulletin):
                while replica in self.silent:
                    await asyncio.sleep(0.01)
                if self.gone[replica].is_set():
                    raise Gone(f"{replica} has died")
                yield each

    async def _unless_gone(self, name: str, work: Any) -> Any:
        if name not in self.replicas:
            await asyncio.sleep(0.01)
            raise Gone(f"{name} has died")
        own = asyncio.ensure_future(work(self.replicas[name]))
        gone = asyncio.ensure_future(self.gone[name].wait())
        try:
            await asyncio.wait({own, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not own.done():
                raise Gone(f"{name} has died")
            return own.result()
        finally:
            own.cancel()
            gone.cancel()
            await asyncio.wait({own, gone})


def statistics(name: str, **values: int) -> Statistics:
    """Statistics of a replica with nothing to do, but for the values that are given."""
    types = {each.name: str(each.type) for each in fields(Statistics)}
    empty = {each: "" if kind == "str" else 0 for each, kind in types.items()}
    return Statistics(**{**empty, "replica": name, **values})
