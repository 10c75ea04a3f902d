"""The request router of Ray Serve: a call goes where the board says, to the replica where its prompt costs
least unless that one is clearly busier. Ray Serve makes one in every process that has a handle.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from glassloop.cluster.board import Board, board_of
from glassloop.cluster.messages import Route


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    def initialize_state(self, **kwargs: Any) -> None:
        self._board: Board = board_of(self._deployment_id.app_name, self._deployment_id.name)

    @property
    def max_num_routing_tasks(self) -> int:
        """The number of calls that may look for a replica at the same time: all of them. With fewer, calls
        that find none would keep back the ones that open the streams of new replicas, without which no
        replica is found."""
        return int(self.num_pending_requests)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._board.set_replicas(replica.replica_id.unique_id for replica in replicas)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Returns the replicas to try, one after the other."""
        if pending_request is None:
            return [list(candidate_replicas)]
        pending_request.routing_context.should_backoff = True  # where none is found, look again after a while
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        ranked = self._board.rank(_route(pending_request))
        return [[by_name[name]] for name in ranked if name in by_name]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        route = _route(pending_request)
        if route.key:
            self._board.on_routed(route.key, replica_id.unique_id)


def _route(pending_request: PendingRequest) -> Route:
    """Returns the route of a call: its first argument has it, or is it."""
    first = pending_request.args[0] if pending_request.args else None
    route = first if isinstance(first, Route) else getattr(first, "route", None)
    return route if isinstance(route, Route) else Route()
