"""The process around the application: its socket, its signals, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from engines.errors import MissingDependencyError, UsageError
from runtime.serve.service import GRACE_S, Service
from runtime.serve.systemd import READY, STOPPING, Systemd

if TYPE_CHECKING:
    import uvicorn

BACKLOG = 2048
INTERRUPTED = 130
"""The exit code of every command that ctrl-C ended."""


def require_packages() -> None:
    """Raises MissingDependencyError unless the extra ``serve`` is installed."""
    import importlib.util

    for module, package in (
        ("fastapi", "fastapi"),
        ("uvicorn", "uvicorn"),
        ("prometheus_client", "prometheus-client"),
    ):
        if importlib.util.find_spec(module) is None:
            raise MissingDependencyError(package, "serve", "the server")


def bind(host: str, port: int) -> socket.socket:
    """A socket that nobody can connect to yet: it is listened to when the model is loaded.

    Raises UsageError where it cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--host {host!r} is no address of this machine ({error})") from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        return bound
    except OSError as error:
        bound.close()
        raise UsageError(
            f"cannot use port {port} of {host}: {error.strerror}; give another --port (0: any free "
            "one) or --host"
        ) from None


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_app(
    app: Any,
    service: Service,
    bound: socket.socket,
    *,
    on_ready: Callable[[], None],
    say: Callable[[str], None],
) -> int:
    """Serve until a signal; the exit code.

    SIGTERM and ctrl-C: new requests are refused (503) while those that run come to their end, for
    ``drain_timeout_s``; then they are ended where they are, with a last chunk that says so. A
    second signal ends them at once. 0 after SIGTERM, 130 after ctrl-C.
    """
    import uvicorn

    from runtime.serve.http.connection import Connection

    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=int(GRACE_S),
    )
    log, sayer = logging.getLogger("uvicorn.error"), _Sayer(say)
    log.addHandler(sayer)
    server = _server(config, service, bound, on_ready, say)
    try:
        asyncio.run(server.serve(sockets=[bound]))
    finally:
        log.removeHandler(sayer)
    code: int = server.exit_code
    return code


class _Sayer(logging.Handler):
    """What uvicorn warns of, as every other line is said."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(f"warning: {record.getMessage()}")


def _server(
    config: uvicorn.Config,
    service: Service,
    bound: socket.socket,
    on_ready: Callable[[], None],
    say: Callable[[str], None],
) -> Any:
    import uvicorn

    class Server(uvicorn.Server):
        """uvicorn's own signal handling closes the door, which health checks then find closed, and
        cuts streams off at its deadline; this one asks the service to drain first."""

        exit_code = 0

        def __init__(self) -> None:
            super().__init__(config)
            self._systemd = Systemd()
            self._watching: asyncio.Task[None] | None = None
            self._draining: asyncio.Task[None] | None = None
            self._is_second = asyncio.Event()

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            try:
                await super().startup(sockets)
            except OSError as error:  # another server took the port while the model was loaded
                raise UsageError(
                    f"cannot listen at {url_of(bound)}: {error.strerror}; give another --port"
                ) from None
            on_ready()
            self._systemd.tell(READY)
            # Engines that failed get no requests from a balancer, so that only a restart helps.
            watching = self._systemd.watch(lambda: service.state != "failed")
            self._watching = asyncio.create_task(watching)

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            loop = asyncio.get_running_loop()
            before = {}
            for number in (signal.SIGTERM, signal.SIGINT):
                with suppress(ValueError):  # not the main thread
                    before[number] = signal.signal(
                        number,
                        lambda got, _frame: loop.call_soon_threadsafe(self._on_signal, got),
                    )
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

        def _on_signal(self, number: int) -> None:
            if self._draining is not None:
                self._is_second.set()
                return
            if number == signal.SIGINT:
                self.exit_code = INTERRUPTED
            self._draining = asyncio.create_task(self._drain())

        async def _drain(self) -> None:
            self._systemd.tell(STOPPING)
            num_inside = service.gate.num_inside
            if num_inside:
                limit_s = service.config.drain_timeout_s
                say(f"shutting down: {num_inside} answers may run for {limit_s:g} s more")
            done = asyncio.create_task(service.drain(service.config.drain_timeout_s))
            hurry = asyncio.create_task(self._is_second.wait())
            await asyncio.wait({done, hurry}, return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                await service.abort()
            hurry.cancel()
            await done
            self.should_exit = True

    return Server()
