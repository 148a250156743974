"""``serve --ray``: starts a cluster or joins one, deploys the fleet, and drains it at a signal."""

from __future__ import annotations

import signal
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from engines.errors import BackendError, UsageError
from runtime.serve.process import INTERRUPTED, bind, url_of
from runtime.serve.ray.application import build, require_ray
from runtime.serve.ray.cluster import cluster
from runtime.serve.ray.options import FleetOptions
from runtime.serve.ray.reports import reason_of

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

APPLICATION = "ssd-trt"
NUM_WAITS = 5
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """Where to listen, and the cluster to run on; None: one of this machine."""

    host: str
    port: int
    address: str | None


def run_fleet(
    options: FleetOptions,
    place: Place,
    *,
    on_ready: Callable[[str, str, str | None], None],
    say: Callable[[str], None],
) -> int:
    """Serve until a signal; the exit code: 0 after SIGTERM, also while it starts, 130 after ctrl-C.

    Drains as a single server does: new requests get 503, those that run go on for
    ``drain_timeout``; a second signal ends them. ``on_ready`` gets the address, the mode and a
    note. Raises UsageError, MissingDependencyError, BundleError and BackendError.
    """
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        return _served(options, place, on_ready, say)
    except SystemExit as left:
        if left.code != signal.SIGTERM:
            raise
        return 0
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, _frame: object) -> None:
    """As Ray's own handler does it, which takes this one's place when Ray starts."""
    sys.exit(number)


def _served(
    options: FleetOptions,
    place: Place,
    on_ready: Callable[[str, str, str | None], None],
    say: Callable[[str], None],
) -> int:
    require_ray()
    application = build(options)
    with bind(place.host, place.port) as bound:  # Ray Serve would say it in a page of its own
        port, url = bound.getsockname()[1], url_of(bound)
    if not options.quiet:
        say("starting Ray Serve and the replicas, which takes a minute where Ray is not up yet")
    with cluster(options, place.address):
        from ray import serve

        http, logging = {"host": place.host, "port": port}, {"log_level": "WARNING"}
        _patiently(lambda: serve.start(http_options=http, logging_config=logging))
        if APPLICATION in serve.status().applications:
            raise UsageError(
                f"an application {APPLICATION} runs on this cluster already; end it first, or "
                "deploy this one under another name with a Serve config"
            )
        try:
            handle = _deployed(application)
            mode, note = handle.describe.remote().result()
            with _signals() as signals:
                on_ready(url, mode, note)
                if not _answers(url):
                    say(
                        f"warning: nothing answers at {url}; Ray Serve may have been started with "
                        "another address on this cluster"
                    )
                signals.first.wait()
                _drain(handle, signals, options, say)
                return INTERRUPTED if signals.is_interrupt else 0
        finally:
            if place.address is None:
                serve.shutdown()
            else:  # others may have applications there, too
                serve.delete(APPLICATION)


def _deployed(application: Any) -> DeploymentHandle:
    from ray import serve
    from ray.serve.exceptions import RayServeException

    try:
        return _patiently(lambda: serve.run(application, name=APPLICATION, route_prefix="/"))
    except (RuntimeError, RayServeException) as error:
        status = serve.status().applications.get(APPLICATION)
        deployments = {} if status is None else status.deployments
        reports = [str(error), *(str(each.message) for each in deployments.values())]
        raise BackendError(
            f"Ray Serve could not start the replicas: {reason_of(reports)}"
        ) from None


def _patiently(step: Callable[[], T]) -> T:
    """Ray Serve gives its processes 60 s to start in, which a busy machine misses. Asked again, it
    goes on with those that are there."""
    for _ in range(NUM_WAITS - 1):
        try:
            return step()
        except TimeoutError:
            continue
    try:
        return step()
    except TimeoutError as error:
        raise BackendError(f"Ray Serve did not start ({error})") from None


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url.replace("0.0.0.0", "127.0.0.1") + "/health", timeout=10):
            return True
    except urllib.error.HTTPError as answer:
        return answer.code == 503  # it drains already
    except OSError:
        return False


class _Signals:
    def __init__(self) -> None:
        self.first, self.second = threading.Event(), threading.Event()
        self.is_interrupt = False

    def __call__(self, number: int, _frame: object) -> None:
        if self.first.is_set():
            self.second.set()
            return
        self.is_interrupt = number == signal.SIGINT
        self.first.set()


@contextmanager
def _signals() -> Iterator[_Signals]:
    """Ray's own handlers would leave at once."""
    seen = _Signals()
    before = {each: signal.signal(each, seen) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _drain(
    handle: DeploymentHandle, signals: _Signals, options: FleetOptions, say: Callable[[str], None]
) -> None:
    if not options.quiet:
        say(f"shutting down: answers may run for {options.drain_timeout:g} s more")
    draining, is_hurried = handle.drain.remote(), False
    while True:
        try:
            draining.result(timeout_s=0.2)
            return
        except TimeoutError:
            if signals.second.is_set() and not is_hurried:
                is_hurried = True
                handle.abort.remote()
        except Exception as error:  # whatever it is, what is left is to be taken down
            say(f"warning: the ingress did not drain ({error})")
            return
