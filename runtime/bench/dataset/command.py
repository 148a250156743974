"""``bench --dataset``: from the command line's arguments to figures."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from engines.bundle import Bundle, open_bundle
from engines.errors import CapacityError, SsdError, UsageError
from runtime.bench.dataset.contestant import Listener, ModeOfBundle, Sample
from runtime.bench.dataset.facts import bundle_facts
from runtime.bench.dataset.figures import by_category
from runtime.bench.dataset.items import Item, read_items
from runtime.bench.dataset.peers.api import STORED, PeerModel
from runtime.bench.dataset.peers.registry import PEERS, open_peer
from runtime.bench.dataset.peers.weights import find_weights
from runtime.bench.dataset.report import DatasetFigures, PromptRecord
from runtime.bench.dataset.turns import (
    Answered,
    Opener,
    single_prompts,
    take_turns,
    whole_categories,
)
from runtime.bench.kind import Show
from runtime.bench.opening import open_mode, require_modes
from runtime.cli.options import MODES, check_fits, possible_modes
from runtime.cli.prompts import shortened
from runtime.device.cores import available_cores
from runtime.sampling.params import SamplingParams

if TYPE_CHECKING:
    from runtime.llm import LLM

MAX_TOKENS = 128
BASELINE = MODES[0]


def measure(args: argparse.Namespace, show: Show) -> DatasetFigures:
    """Answer every prompt in every mode, and by every peer.

    Usually all are open at once and take turns prompt by prompt, which is the fairest: one that is
    not asked holds memory and sleeping threads only, and ``auto`` goes on with what it has learnt,
    as it would for its user. ``--reopen`` is for bundles too large for that.

    Ctrl-C and a mode that fails keep what was measured, and are raised where that is nothing.
    """
    items = read_items(args.dataset, args.limit)
    params = SamplingParams(temperature=args.temperature or 0.0)
    bundle = open_bundle(args.bundle)
    modes = args.modes or possible_modes(bundle, args)
    if args.drafters and not set(modes) - {BASELINE}:
        raise UsageError(f"--drafters has no effect on {BASELINE}; name a mode that drafts, too")
    require_modes(args, modes)
    peer_model = _peer_model(args, bundle)
    with open_mode(args, BASELINE, on_round=Listener()) as llm:
        prompts = _encode(llm, items, is_chat=not args.no_chat)
        num_threads = len(llm.settings.placement.target_cores) or len(available_cores())
    fitting = list(prompts)
    openers: dict[str, Opener] = dict(_modes(args, modes, params))
    if peer_model is not None:
        alike, vocab = replace(peer_model, num_threads=num_threads), bundle.target.model.vocab_size
        openers |= {peer: partial(open_peer, peer, alike, vocab) for peer in args.peers}
    done = take_turns(
        openers,
        list(prompts.values()),
        whole_categories(fitting) if args.reopen else single_prompts(fitting),
        args.max_tokens or MAX_TOKENS,
        show,
        keeps_open=not args.reopen,
        repeats=args.repeats or 1,
    )
    if not done.places and done.ended_by is not None:
        raise done.ended_by
    return _figures(args, bundle, items, prompts, done)


def _figures(
    args: argparse.Namespace,
    bundle: Bundle,
    items: Sequence[Item],
    prompts: Mapping[Item, Sequence[int]],
    done: Answered,
) -> DatasetFigures:
    """Of the prompts that all have answered; ``prompts`` are those of ``items`` that fit."""
    fitting = list(prompts)
    answered = [fitting[place] for place in done.places]
    samples = {name: [each[place] for place in done.places] for name, each in done.samples.items()}
    repeats: int = args.repeats or 1
    has_failed = isinstance(done.ended_by, SsdError)
    return DatasetFigures(
        dataset=args.dataset.name,
        bundle=bundle_facts(bundle, args.num_draft, args.branches),
        max_tokens=args.max_tokens or MAX_TOKENS,
        temperature=args.temperature or 0.0,
        repeats=repeats,
        num_planned=len(samples) * len(fitting) * repeats,
        num_done=done.num_done,
        failure=f"{done.at_turn} failed: {done.ended_by}" if has_failed else None,
        lines_left_out=tuple(item.line for item in items if item not in prompts),
        descriptions={name: facts.description for name, facts in done.facts.items()},
        notes={name: facts.note for name, facts in done.facts.items() if facts.note},
        categories=by_category(answered, samples, args.peers or ()),
        prompts=tuple(_records(prompts, answered, samples)),
    )


def _modes(
    args: argparse.Namespace, modes: Sequence[str], params: SamplingParams
) -> Iterator[tuple[str, Opener]]:
    """Each mode, and of several drafters each mode that drafts with each of them."""
    drafters: Sequence[str | None] = args.drafters or (None,)
    for mode in modes:
        for drafter in (None,) if mode == BASELINE else drafters:
            name = mode if len(drafters) == 1 or drafter is None else f"{mode} {drafter}"
            yield name, partial(_open, args, name, mode, drafter, params)


@contextmanager
def _open(
    args: argparse.Namespace, name: str, mode: str, drafter: str | None, params: SamplingParams
) -> Iterator[ModeOfBundle]:
    listener = Listener()
    with open_mode(args, mode, on_round=listener, drafter=drafter) as llm:
        yield ModeOfBundle(name, llm, listener, params)


def _peer_model(args: argparse.Namespace, bundle: Bundle) -> PeerModel | None:
    """What peers run, the number of threads still open; None without peers. Raises UsageError and
    MissingDependencyError."""
    if not args.peers:
        for option in ("peer_model", "peer_quantisation"):
            if getattr(args, option) is not None:
                raise UsageError(f"--{option.replace('_', '-')} goes with --peers")
        return None
    if args.temperature:
        raise UsageError("peers answer greedily; leave --temperature or --peers away")
    if args.peer_quantisation is not None and "llama.cpp" not in args.peers:
        raise UsageError("--peer-quantisation is llama.cpp's; leave it away, or add the peer")
    path = find_weights(bundle, args.peer_model)
    for peer in args.peers:
        PEERS[peer].require(path)
    return PeerModel(
        path=path,
        quantisation=args.peer_quantisation or STORED,
        num_threads=1,
        max_len=bundle.manifest.limits.max_len,
    )


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
    prompts: Mapping[Item, Sequence[int]],
    items: Sequence[Item],
    answers: Mapping[str, Sequence[Sequence[Sample]]],
) -> Iterator[PromptRecord]:
    for place, item in enumerate(items):
        for name, of_one in answers.items():
            for number_of_pass, sample in enumerate(of_one[place], start=1):
                yield PromptRecord(
                    line=item.line,
                    category=item.category,
                    text=shortened(item.text),
                    contestant=name,
                    number_of_pass=number_of_pass,
                    num_prompt_tokens=len(prompts[item]),
                    num_tokens=len(sample.tokens),
                    num_rounds=len(sample.blocks),
                    decode_s=sample.decode_s,
                    ttft_s=sample.ttft_s,
                )
