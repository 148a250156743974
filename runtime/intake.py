"""What an LLM makes requests with: its prompts, its grammars, and what its engines can serve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engines.bundle import Bundle
from runtime.call import Call, named
from runtime.completion import Answer, Delta
from runtime.grammar import GrammarCompiler
from runtime.request import GenerateOptions
from runtime.sampling.params import SamplingParams
from runtime.text.prompt import Prompts
from runtime.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]
"""Text, or token ids."""


@dataclass(frozen=True, slots=True)
class Served:
    """What engines can serve, as ``runtime.loading.api.Pair`` says it."""

    max_banned_ids: int | None
    follows_text: bool


class Intake:
    """Turns what a caller asks into answers to come. May be used from several threads.

    ``answer`` and ``answers`` raise UsageError or CapacityError for what cannot be served, and
    MissingDependencyError for a grammar without the library that compiles it.
    """

    def __init__(self, bundle: Bundle, served: Served) -> None:
        data, model = bundle.tokenizer_path.read_bytes(), bundle.target.model
        self.tokenizer = Tokenizer(data)
        self.prompts = Prompts(bundle, self.tokenizer)
        self.compiler = GrammarCompiler(data, model.vocab_size, model.eos_token_ids)
        self._bundle = bundle
        self.served = served

    def answer(
        self,
        prompt: Prompt,
        params: SamplingParams,
        on_delta: Callable[[Delta], None],
        options: GenerateOptions,
    ) -> Answer:
        return self._call(options).answer(self._ids(prompt), params, on_delta)

    def answers(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams],
        on_text: Callable[[int, str], None] | None,
        options: GenerateOptions,
    ) -> list[Answer]:
        """See ``runtime.call.Call.answers``."""
        call = self._call(options)
        ids: Any = prompts
        if isinstance(prompts, Sequence) and not isinstance(prompts, str):
            ids = []
            for index, prompt in enumerate(prompts):
                with named(f"prompt {index}"):
                    ids.append(self._ids(prompt))
        return call.answers(ids, params, on_text)  # which refuses what is no list

    def _ids(self, prompt: Prompt) -> Sequence[int]:
        return self.prompts.encode(prompt) if isinstance(prompt, str) else prompt

    def _call(self, options: GenerateOptions) -> Call:
        return Call(
            self._bundle,
            self.tokenizer,
            options,
            compiler=self.compiler,
            max_banned_ids=self.served.max_banned_ids,
            follows_text=self.served.follows_text,
        )
