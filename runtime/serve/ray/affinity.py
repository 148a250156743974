"""Which requests belong together. Pure.

A replica that has answered the beginning of a text has it in its cache. So the key is what a
conversation keeps from turn to turn: what the client calls it, else how it began.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.serve.http.requests import ChatRequest, CompletionRequest

NUM_FIRST_TOKENS = 64
"""Of a prompt without messages. Fewer would send all that share an instruction to one replica."""


def key_of(body: ChatRequest | CompletionRequest | None, prompt: Sequence[int]) -> str:
    """The routing key of a request: by ``prompt_cache_key`` or ``user``, else by the messages up
    to the user's first one, else by the prompt's first tokens; and ``cache_salt``, since what is
    not shared need not meet. A digest: names stay out of logs.
    """
    salt = None if body is None else body.cache_salt
    return hashlib.sha256(json.dumps([salt, _parts(body, prompt)]).encode()).hexdigest()[:32]


def _parts(body: ChatRequest | CompletionRequest | None, prompt: Sequence[int]) -> list[object]:
    name = getattr(body, "prompt_cache_key", None) or getattr(body, "user", None)
    if name:
        return ["name", name]
    messages = getattr(body, "messages", None)
    if not messages:
        return ["prompt", *prompt[:NUM_FIRST_TOKENS]]
    parts: list[object] = ["messages"]
    for message in messages:
        parts.append(message.as_said())
        if message.role == "user":
            break
    return parts
