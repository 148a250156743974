"""``bench --dataset``: from the command line's arguments to figures."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from engines.errors import CapacityError
from runtime.bench.dataset.contestant import Listener, ModeOfBundle, Sample
from runtime.bench.dataset.figures import by_category
from runtime.bench.dataset.items import Item, read_items
from runtime.bench.dataset.report import DatasetFigures, PromptRecord
from runtime.bench.dataset.turns import single_prompts, take_turns, whole_categories
from runtime.bench.kind import Show
from runtime.bench.opening import open_mode, require_modes
from runtime.cli.options import MODES, check_fits
from runtime.sampling.params import SamplingParams

if TYPE_CHECKING:
    from runtime.llm import LLM

MAX_TOKENS = 128


def measure(args: argparse.Namespace, show: Show) -> DatasetFigures:
    """Answer every prompt in every mode.

    Usually all modes are open at once and take turns prompt by prompt, which is the fairest: a mode
    that is not asked holds memory and sleeping threads only, and ``auto`` goes on with what it has
    learnt, as it would for its user. ``--reopen`` is for bundles too large for that.
    """
    items = read_items(args.dataset, args.limit)
    params = SamplingParams(temperature=args.temperature or 0.0)
    modes: Sequence[str] = args.modes or MODES
    max_tokens: int = args.max_tokens or MAX_TOKENS
    require_modes(args, modes)
    with open_mode(args, modes[0], on_round=Listener()) as llm:
        prompts = _encode(llm, items, is_chat=not args.no_chat)
    fitting = list(prompts)
    done = take_turns(
        {mode: partial(_open, args, mode, params) for mode in modes},
        list(prompts.values()),
        whole_categories(fitting) if args.reopen else single_prompts(fitting),
        max_tokens,
        show,
        keeps_open=not args.reopen,
    )
    return DatasetFigures(
        dataset=args.dataset.name,
        max_tokens=max_tokens,
        temperature=params.temperature,
        lines_left_out=tuple(item.line for item in items if item not in prompts),
        notes=done.notes,
        categories=by_category(fitting, done.answers),
        prompts=tuple(_records(fitting, done.answers)),
    )


@contextmanager
def _open(args: argparse.Namespace, mode: str, params: SamplingParams) -> Iterator[ModeOfBundle]:
    listener = Listener()
    with open_mode(args, mode, on_round=listener) as llm:
        yield ModeOfBundle(mode, llm, listener, params)


def _encode(llm: LLM, items: Sequence[Item], *, is_chat: bool) -> dict[Item, list[int]]:
    """The prompts that fit the bundle. Once for all modes: a template that names the date must not
    differ between them. Raises CapacityError where none fits."""
    prompts: dict[Item, list[int]] = {}
    refusal: CapacityError | None = None
    for item in items:
        try:
            ids = llm.encode(item.text, chat=is_chat and llm.has_chat_template)
            check_fits(f"the prompt of line {item.line}", len(ids), llm.limits.max_len)
        except CapacityError as error:
            refusal = error
            continue
        prompts[item] = ids
    if refusal is not None and not prompts:
        raise refusal
    return prompts


def _records(
    items: Sequence[Item], answers: Mapping[str, Sequence[Sample]]
) -> Iterator[PromptRecord]:
    for place, item in enumerate(items):
        for name, samples in answers.items():
            sample = samples[place]
            yield PromptRecord(
                line=item.line,
                category=item.category,
                contestant=name,
                num_tokens=len(sample.tokens),
                num_rounds=len(sample.blocks),
                decode_s=sample.decode_s,
                ttft_s=sample.ttft_s,
            )
