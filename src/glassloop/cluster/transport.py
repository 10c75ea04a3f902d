"""`Transport`: carries calls of an ingress to the replicas. `serve_transport.py` does it with Ray Serve."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from glassloop.cluster.messages import Bulletin, Job, Question, Reply


class Transport(Protocol):
    """Carries calls to the replicas. Raises `Gone` if a replica cannot be reached."""

    async def start(self, job: Job) -> None:
        """Computes a job on a replica of the router's choice; returns when it has ended. If the caller stops
        waiting, the job is cancelled."""

    async def cancel(self, replica: str, key: str, session: str, run: int | None = None) -> None:
        """Ends a job, or the run at this place of it."""

    def open(self, replica: str, session: str) -> AsyncIterator[Bulletin]: ...

    def ask(self, question: Question) -> AsyncIterator[Reply]:
        """Asks a replica of the router's choice. If the caller stops listening, the call is cancelled."""
