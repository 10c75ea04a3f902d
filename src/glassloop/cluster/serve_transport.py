"""`ServeTransport`: reaches the replicas through a handle of Ray Serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from glassloop.cluster.calls import is_cancelled
from glassloop.cluster.messages import Bulletin, Gone, Job, Question, Reply, Route
from glassloop.cluster.pickling import from_parts


class ServeTransport:
    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle
        self._streaming = handle.options(stream=True)
        # By gRPC, which takes less processor time for each message than Ray's own streams.
        self._telling = handle.options(stream=True, _by_reference=False)

    async def start(self, job: Job) -> None:
        await _result(self._handle.start.remote(job))

    async def cancel(self, replica: str, key: str, session: str, run: int | None = None) -> None:
        await _result(self._handle.cancel.remote(Route(only=replica), key, session, run))

    def ask(self, question: Question) -> AsyncIterator[Reply]:
        return _items(self._streaming.ask.remote(question))

    def open(self, replica: str, session: str) -> AsyncIterator[Bulletin]:
        return from_parts(_items(self._telling.open.remote(Route(only=replica), session)))


async def _items(stream: Any) -> AsyncIterator[Any]:
    """Yields the items of a stream, which is cancelled if the caller stops listening."""
    try:
        async for item in stream:
            yield item
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        raise Gone("the replica has cancelled the stream") from None
    except (RayError, RayServeException, grpc.RpcError) as error:
        raise _as_error(error) from error
    finally:
        stream.cancel()


async def _result(response: Any) -> Any:
    """Returns the result of a call, which is cancelled if the caller stops waiting."""
    try:
        return await response
    except asyncio.CancelledError:
        response.cancel()
        if is_cancelled():
            raise
        raise Gone("Ray has cancelled the call") from None
    except (RayError, RayServeException) as error:
        raise _as_error(error) from error


def _as_error(error: Exception) -> BaseException:
    """Returns the exception of the replica's own code, or `Gone` where the replica could not answer."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        return error.cause
    return Gone(str(error))
