"""What one call asks for, read once: each of its prompts becomes an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from engines.bundle import Bundle
from engines.errors import CapacityError, UsageError
from runtime.completion import Answer, Delta
from runtime.grammar.compiler import GrammarCompiler
from runtime.request import GenerateOptions, Request, items_of, read_options, read_prompt
from runtime.sampling.params import SamplingParams
from runtime.text.detok import Detokenizer
from runtime.text.stop import StopText
from runtime.text.tokenizer import Tokenizer


class Call:
    """The options of a call."""

    def __init__(
        self,
        bundle: Bundle,
        tokenizer: Tokenizer,
        options: Mapping[str, object],
        *,
        compiler: GrammarCompiler,
        max_banned_ids: int | None = None,
        follows_text: bool = True,
    ) -> None:
        """``max_banned_ids``: how many tokens ``min_tokens`` can keep away (None: any number).
        ``follows_text``: whether the pair serves biases, and laws that hang on the text.

        Raises UsageError for options that cannot be served as asked, CapacityError for too many,
        MissingDependencyError for a grammar without the library that compiles it.
        """
        model = bundle.target.model
        self._vocab_size = model.vocab_size
        self._max_len = bundle.manifest.limits.max_len
        self._tokenizer = tokenizer
        known = GenerateOptions.__annotations__
        for name in options:
            if name not in known:
                raise UsageError(
                    f"unknown option {name!r}, expected {', '.join(known)}; how to sample is said "
                    "by SamplingParams"
                )
        # Values of any type: read_options refuses the wrong ones itself.
        self._ending = read_options(vocab_size=model.vocab_size, **options)  # type: ignore[arg-type]
        self._follows_text = follows_text
        self._grammar = self._ending.grammar
        self._compiler = compiler
        if not follows_text:
            _refuse_on_gpu({"bad-words": self._ending.bad_words, "grammar": self._grammar})
        if self._grammar is not None:
            compiler.start(self._grammar)
        self._banned_sequences = self._sequences(self._ending.bad_words)
        own_ends = () if self._ending.ignore_eos else model.eos_token_ids
        self._stop_ids = frozenset((*own_ends, *self._ending.stop_token_ids))
        every = range(model.vocab_size)
        ends = self._stop_ids if self._ending.min_tokens else frozenset[int]()
        if ends.issuperset(every):
            raise UsageError(
                f"min-tokens is {self._ending.min_tokens} and every token ends the text, so none "
                "may come first; give fewer stop-token-ids, or min-tokens 0"
            )
        if ends.union(each[-1] for each in self._banned_sequences).issuperset(every):
            raise UsageError("bad-words may leave no token to go on with; give fewer of them")
        num_banned = len(self._stop_ids) if self._ending.min_tokens else 0
        if max_banned_ids is not None and num_banned > max_banned_ids:
            raise CapacityError(
                f"--min-tokens keeps {num_banned} tokens that end a text away, on a GPU at most "
                f"{max_banned_ids}; give fewer --stop-token-ids, or --min-tokens 0"
            )

    def answer(
        self, prompt: Sequence[int], params: SamplingParams, on_delta: Callable[[Delta], None]
    ) -> Answer:
        """Raises UsageError or CapacityError for a prompt or params that cannot be served."""
        ids = read_prompt(prompt, max_len=self._max_len, vocab_size=self._vocab_size)
        if not isinstance(params, SamplingParams):
            raise UsageError(f"params is a {type(params).__name__}, expected SamplingParams")
        if params.banned_ids or params.banned_sequences or params.is_constrained:
            raise UsageError(
                "params has banned_ids, banned_sequences or is_constrained, which are the LLM's "
                "own; min-tokens, bad-words and grammar set them"
            )
        wrong = next((token for token, _ in params.bias if token >= self._vocab_size), None)
        if wrong is not None:
            raise UsageError(
                f"logit_bias has token id {wrong}, the vocabulary ends at {self._vocab_size - 1}"
            )
        if not self._follows_text:
            penalties = "repetition_penalty, presence_penalty or frequency_penalty"
            _refuse_on_gpu({penalties: params.penalises, "logit_bias": params.logit_bias})
        ending = self._ending
        text = Detokenizer(self._tokenizer)
        stop = None
        if ending.stop:
            stop = StopText(text, ending.stop, min_tokens=ending.min_tokens)
        request = Request(
            ids,
            params,
            ending.max_tokens,
            self._stop_ids,
            self._max_len,
            min_tokens=ending.min_tokens,
            stop=stop,
            num_logprobs=ending.logprobs,
            constraint=None if self._grammar is None else self._compiler.start(self._grammar),
            banned_sequences=self._banned_sequences,
            cache_salt=ending.cache_salt,
        )
        return Answer(request, stop or text, on_delta)

    def answers(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams],
        on_text: Callable[[int, str], None] | None,
    ) -> list[Answer]:
        """One for each prompt, with params for all or for each; ``on_text`` gets their index, and
        text that is not empty.

        Raises as ``answer`` does, naming the prompt.
        """
        listed = items_of(prompts)
        if listed is None:
            raise UsageError(f"prompts is a {type(prompts).__name__}, expected a list of prompts")
        single = isinstance(params, SamplingParams)
        laws = [params] * len(listed) if single else items_of(params)
        if laws is None:
            raise UsageError(
                f"params is a {type(params).__name__}, expected SamplingParams or a list of them"
            )
        if len(laws) != len(listed):
            raise UsageError(f"{len(laws)} params for {len(listed)} prompts, expected one each")
        listen = on_text or (lambda _index, _piece: None)
        found = []
        for index, (prompt, law) in enumerate(zip(listed, laws, strict=True)):
            with named(f"prompt {index}"):
                on_delta = text_only(partial(listen, index))
                found.append(self.answer(prompt, law, on_delta))
        return found

    def _sequences(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The tokens that spell forbidden words, alone and behind a space."""
        spelled: dict[tuple[int, ...], None] = {}
        for word in words:
            bare = word.strip() or word
            for text in (word, bare, f" {bare}"):
                if ids := self._tokenizer.encode(text):
                    spelled[tuple(ids)] = None
        return tuple(spelled)


def text_only(on_text: Callable[[str], None]) -> Callable[[Delta], None]:
    """Listens to deltas for one who wants to know of new text alone."""

    def listen(delta: Delta) -> None:
        if delta.text:
            on_text(delta.text)

    return listen


def _refuse_on_gpu(asked: Mapping[str, object]) -> None:
    """Raise UsageError for what is asked for and a target on a GPU does not serve."""
    for name, value in asked.items():
        if value:
            raise UsageError(
                f"{name} cannot be served by a target on a GPU, whose tokens are chosen there "
                "from its logits alone; leave it away, or use --device cpu"
            )


@contextmanager
def named(what: str) -> Iterator[None]:
    """Errors of a request say which one it is."""
    try:
        yield
    except (UsageError, CapacityError) as error:
        raise type(error)(f"{what}: {error}") from None
