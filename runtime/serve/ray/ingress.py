"""What clients of a fleet talk to: the server's own application, over replicas.

Plain classes: Ray Serve makes a deployment of ``Ingress`` (``runtime.serve.ray.application``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from engines.console import say
from runtime.serve.log import logger
from runtime.serve.ray.fleet import Fleet, FleetModel, FleetService, Question, Response
from runtime.serve.ray.messages import Description, FleetRounds
from runtime.serve.ray.options import FleetOptions

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle


class Ingress:
    """One process; it tokenises, asks replicas, and writes answers."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, options: FleetOptions, replicas: DeploymentHandle
    ) -> None:
        """Waits for a first replica, which says what is loaded."""
        described: Description = await replicas.describe.remote()
        self._options = options
        model = FleetModel(options.bundle, described)
        fleet = Fleet(model, FleetRounds(), Asking(replicas, options.sticky), is_loss=is_loss)
        config = options.serve_config()
        self._service = FleetService(fleet, config, num_replicas=options.most_replicas)

    def __serve_build_asgi_app__(self) -> Any:
        from runtime.serve.http.app import create_app

        log = logger(say, is_json=self._options.json_log, is_quiet=self._options.quiet)
        return _Nameless(create_app(self._service, log=log))

    async def describe(self) -> tuple[str, str | None]:
        """The mode, and what is not as it was asked for."""
        return self._service.model.mode, self._service.model.note

    async def drain(self) -> bool:
        """Refuse new requests and wait for those that run, as a single server does at SIGTERM."""
        return await self._service.drain(self._service.config.drain_timeout_s)

    async def abort(self) -> None:
        """End what runs with what there is."""
        await self._service.abort()


class _Nameless:
    """An application without the header that Ray Serve's proxy adds to every answer by itself; both
    have the same value, the client's own or the proxy's."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def without(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [each for each in message["headers"] if each[0] != b"x-request-id"]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, without)


class Asking:
    """Asks a replica through Ray Serve."""

    def __init__(self, replicas: DeploymentHandle, is_sticky: bool) -> None:
        self._generate: Callable[..., Any] = replicas.options(
            method_name="generate", stream=True
        ).options
        self._is_sticky = is_sticky

    def __call__(self, question: Question, *, avoid: Sequence[str]) -> Response:
        chosen = {"session_id": question.key} if self._is_sticky else {}
        handle = self._generate(**chosen)
        response: Response = handle.remote(
            list(question.prompt), question.params, question.options, avoid=tuple(avoid)
        )
        return response


def is_loss(error: BaseException) -> bool:
    """Whether what Ray raised means that the replica, or its machine, is gone."""
    from ray.exceptions import (
        NodeDiedError,
        ObjectLostError,
        OutOfMemoryError,
        RayActorError,
        WorkerCrashedError,
    )
    from ray.serve.exceptions import DeploymentUnavailableError

    gone = (RayActorError, WorkerCrashedError, NodeDiedError, ObjectLostError, OutOfMemoryError)
    return isinstance(error, (*gone, DeploymentUnavailableError))
