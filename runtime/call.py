"""What one call asks for, read once: each of its prompts becomes an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from engines.bundle import Bundle
from engines.errors import CapacityError, UsageError
from runtime.completion import Answer
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
        max_banned_ids: int | None = None,
    ) -> None:
        """``max_banned_ids``: how many tokens ``min_tokens`` can keep away (None: any number).

        Raises UsageError for options that cannot be served as asked, CapacityError for too many.
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
        self._stop_ids = frozenset((*model.eos_token_ids, *self._ending.stop_token_ids))
        if self._ending.min_tokens and self._stop_ids.issuperset(range(model.vocab_size)):
            raise UsageError(
                f"min-tokens is {self._ending.min_tokens} and every token ends the text, so none "
                "may come first; give fewer stop-token-ids, or min-tokens 0"
            )
        num_banned = len(self._stop_ids) if self._ending.min_tokens else 0
        if max_banned_ids is not None and num_banned > max_banned_ids:
            raise CapacityError(
                f"--min-tokens keeps {num_banned} tokens that end a text away, on a GPU at most "
                f"{max_banned_ids}; give fewer --stop-token-ids, or --min-tokens 0"
            )

    def answer(
        self, prompt: Sequence[int], params: SamplingParams, on_text: Callable[[str], None]
    ) -> Answer:
        """Raises UsageError or CapacityError for a prompt or params that cannot be served."""
        ids = read_prompt(prompt, max_len=self._max_len, vocab_size=self._vocab_size)
        if not isinstance(params, SamplingParams):
            raise UsageError(f"params is a {type(params).__name__}, expected SamplingParams")
        if params.banned_ids:
            raise UsageError(
                "params has banned_ids, which are the LLM's own; min-tokens keeps stop tokens away"
            )
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
        )
        return Answer(request, stop or text, on_text)

    def answers(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams],
        on_text: Callable[[int, str], None] | None,
    ) -> list[Answer]:
        """One for each prompt, with params for all or for each; ``on_text`` gets their index, too.

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
            with _named(f"prompt {index}"):
                found.append(self.answer(prompt, law, partial(listen, index)))
        return found


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Errors of a request say which one it is."""
    try:
        yield
    except (UsageError, CapacityError) as error:
        raise type(error)(f"{what}: {error}") from None
