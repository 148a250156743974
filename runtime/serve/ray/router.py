"""Which replica Ray Serve gives a request to."""

from __future__ import annotations

from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter


class StickyRouter(ConsistentHashRouter):  # type: ignore[misc]
    """Ray Serve's consistent hashing over a request's session: the same replica as long as it is
    there and has room, else the next on the ring. Replicas that the request says it failed on come
    last."""

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        avoid = () if pending_request is None else pending_request.kwargs.get("avoid", ())
        if not avoid:
            ranks: list[list[Any]] = await super().choose_replicas(
                candidate_replicas, pending_request
            )
            return ranks
        pending_request.routing_context.should_backoff = True
        others = [each for each in candidate_replicas if each.replica_id.unique_id not in avoid]
        return [[each] for each in others] or [candidate_replicas]
