"""What a server is started with, beside its model."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass

from engines.errors import UsageError

MIB = 1 << 20
KEY_VARIABLE = "SSD_API_KEY"
"""Of the environment: the API key, where none is given otherwise."""


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Limits and manners. Raises UsageError for what goes not together.

    model_name         what requests call the model
    api_key            asked for at every address but the page's files, ``/health`` and
                       ``/metrics``; None: nobody is asked
    protects_metrics   ask for it at ``/metrics``, too
    max_waiting        choices that may wait beside those that are decoded; more are refused (429)
    max_choices        of one request: prompts x n
    max_body_bytes     of a request's body; longer ones are refused (413)
    body_timeout_s     how long a body may take to arrive (408)
    request_timeout_s  how long an answer may take, waiting included; None: as long as it takes
    drain_timeout_s    how long answers may still run once the server was told to stop
    allowed_origins    web pages of other origins that may use it (CORS); ``*`` for all
    spec_metrics       tell of each answer how its drafts fared, in ``metrics``
    has_page           serve the page at ``/``
    """

    model_name: str
    api_key: str | None = None
    protects_metrics: bool = False
    max_waiting: int = 64
    max_choices: int = 16
    max_body_bytes: int = MIB
    body_timeout_s: float = 30.0
    request_timeout_s: float | None = 600.0
    drain_timeout_s: float = 30.0
    allowed_origins: tuple[str, ...] = ()
    spec_metrics: bool = False
    has_page: bool = True

    def __post_init__(self) -> None:
        if self.protects_metrics and self.api_key is None:
            raise UsageError(
                f"--protect-metrics asks for the API key, and there is none: set {KEY_VARIABLE}"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_key(given: str | None) -> str | None:
    """The API key: ``given``, or the environment's. Raises UsageError for one that no header can
    carry."""
    key = os.environ.get(KEY_VARIABLE) if given is None else given
    if key is not None and not (key.isascii() and key.isprintable() and key == key.strip() and key):
        raise UsageError(
            f"the API key ({KEY_VARIABLE}) must be printable ASCII without outer blanks"
        )
    return key
