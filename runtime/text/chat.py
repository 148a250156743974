"""Chat templates: the Jinja program a checkpoint ships to turn messages into one prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NoReturn

from engines.errors import BundleCorruptError, MissingDependencyError, UsageError

if TYPE_CHECKING:
    import jinja2

ADVICE = "run without it (no --chat, or --no-chat)"


class ChatTemplate:
    """A compiled template, with the names that templates written for transformers expect.

    Templates come with checkpoints, so they run in Jinja's immutable sandbox. Given to them:
    ``messages``, ``add_generation_prompt``, the special tokens by name (``bos_token``), ``tools``
    and ``documents`` (None), ``raise_exception``, ``strftime_now``, the ``tojson`` filter and
    loop controls.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], *, advice: str = ADVICE
    ) -> None:
        """``advice`` ends the messages of UsageErrors.

        Raises MissingDependencyError, or UsageError for a template that does not compile.
        """
        self._special_tokens = dict(special_tokens)
        self._advice = advice
        environment = _environment()
        try:
            self._template = environment.from_string(source)
        # Jinja compiles to Python code, and a hostile template can fail with any exception.
        except Exception as error:
            raise self._refusal("does not compile", error) from None

    @classmethod
    def from_bytes(cls, source: bytes, special_tokens: Mapping[str, str]) -> ChatTemplate:
        """From a bundle's file. Raises BundleCorruptError where that is not UTF-8."""
        try:
            return cls(source.decode("utf-8"), special_tokens)
        except UnicodeDecodeError as error:
            raise BundleCorruptError(
                f"the chat template is not UTF-8 (byte {error.start}); {ADVICE}"
            ) from None

    def render(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
    ) -> str:
        """The prompt text for ``messages``: each a ``role`` and ``content``. Raises UsageError."""
        names: dict[str, object] = {
            **self._special_tokens,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
        }
        try:
            return self._template.render(names)
        except Exception as error:
            raise self._refusal("failed", error) from None

    def _refusal(self, what: str, error: Exception) -> UsageError:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        return UsageError(f"the chat template {what}: {reason}; {self._advice}")


def _environment() -> jinja2.Environment:
    try:
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise MissingDependencyError("jinja2", "cpu", "applying a chat template") from None

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML (``<`` as ``\\u003c``), which a model has never seen."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)
