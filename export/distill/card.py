"""The model card: README.md in a draft's folder, written from what was measured."""

from __future__ import annotations

from export.checkpoint.spec import ModelSpec
from export.distill.evaluate import NUM_DRAFT, NUM_TOKENS
from export.distill.facts import Facts
from export.distill.overlap import NUM_TOKENS as OVERLAP


def text(name: str, spec: ModelSpec, facts: Facts) -> str:
    """The card of the draft ``name``, Markdown."""
    parts = [_head(name, spec, facts), _training(facts), _held_out(facts)]
    if facts.evaluation:
        parts.append(_evaluation(facts))
    parts += [_again(facts), _license(facts)]
    return "\n\n".join(parts) + "\n"


def _head(name: str, spec: ModelSpec, facts: Facts) -> str:
    layers = ", ".join(map(str, facts.layers))
    start = f"started from the target's layers {layers} (counted from 0)"
    if facts.start is not None:
        start = f"trained further from the draft {facts.start}"
        if facts.start_layers != spec.num_layers:
            start += f", which had {facts.start_layers}"
    wide = facts.target_spec.hidden_size
    width = (
        f"of the target's width ({wide})"
        if spec.hidden_size == wide
        else f"narrowed to {spec.hidden_size} of {wide} directions (main directions of its states)"
    )
    embedding = (
        "Stores no input embedding: `embeddings_from_target` in `config.json`. It works with"
        if spec.embeddings_from_target
        else "Has an input embedding of its own. It is trained for"
    )
    return f"""# {name}

A draft for {facts.origin.name}: what that model is likely to say next, guessed at a part of its
cost.

- {spec.num_layers} layers {width}, {start}.
- Proposes {spec.draft_vocab_size:,} of the target's {spec.vocab_size:,} ids. `d2t` maps them:
  target id = draft id + d2t[draft id].
- {embedding} that target only,
  whose fingerprint is in `config.json`."""


def _training(facts: Facts) -> str:
    data, done = facts.data, facts.progress
    labels = (
        "the target's law over the draft's ids (soft labels), at every position of the answers\n"
        "  and at most as many of the prompts"
        if facts.soft
        else "the target's answers, token by token (hard labels)"
    )
    lines = [
        "## Training",
        "",
        f"- Data: {', '.join(data.names)}: {data.num_sequences:,} sequences that the target wrote,",
        (
            f"  {data.num_tokens:,} tokens, {data.num_answer_tokens:,} of them in answers; "
            f"{data.num_greedy:,} answers are greedy."
        ),
        f"- Learned from {labels}.",
        f"- {done.num_steps:,} steps, {done.num_tokens:,} tokens "
        f"({done.num_tokens / max(1, data.num_tokens):.1f} passes), {done.seconds / 60.0:.0f} "
        "minutes of training"
        + ("; stopped early, held-out acceptance no longer rose." if facts.is_early else "."),
    ]
    if facts.evaluated_on is not None:
        one = data.num_refused == 1
        found = (
            "sequence was left out because it shares"
            if one
            else ("sequences were left out because they share")
        )
        ending = "answers it" if one else "answer it"
        lines.append(
            f"- {data.num_refused:,} {found} {OVERLAP} tokens in a row with a prompt of "
            f"{facts.evaluated_on}, or {ending}."
        )
    return "\n".join(lines)


def _held_out(facts: Facts) -> str:
    figures = facts.figures
    kind = "greedy answers" if figures.greedy else "sampled answers"
    shares = [f"{100 * sum(figures.rank_shares[:count]):.1f} %" for count in (4, 8, 16)]
    lengths = " / ".join(map(str, figures.tokens_per_round))
    rounds = " / ".join(f"{tokens:.2f}" for tokens in figures.tokens_per_round.values())
    return f"""## Held-out text

{figures.num_sequences:,} {kind} ({figures.num_positions:,} positions) of the training text's kind,
whose prompts were held out:

| | |
|---|---|
| the target's token is the draft's first candidate (alpha) | {100 * figures.alpha:.1f} % |
| among its first 4 / 8 / 16 | {" / ".join(shares)} |
| tokens a round, K = {lengths} | {rounds} |"""


def _evaluation(facts: Facts) -> str:
    rows = [
        f"| {name.replace('|', '&#124;')} | {each.num_prompts} | {each.alpha:.3f} "
        f"| {each.model:.2f} | {each.lookup:.2f} | {each.both:.2f} |"
        for name, each in (facts.evaluation or {}).items()
    ]
    return "\n".join(
        [
            "## Evaluation",
            "",
            (
                f"{facts.evaluated_on}: first turn, greedy, {NUM_TOKENS} tokens, K = {NUM_DRAFT}. "
                "Tokens a round, and alpha as above:"
            ),
            "",
            "| category | prompts | alpha | draft alone | lookup alone | lookup, then draft |",
            "|---|---|---|---|---|---|",
            *rows,
        ]
    )


def _again(facts: Facts) -> str:
    return f"""## To make it again

    {facts.command}

Where the clock ends training or writing, another run gives other weights of about the same
quality."""


def _license(facts: Facts) -> str:
    if facts.origin.license is None:
        return f"## Licence\n\nDerived from {facts.origin.name}: its licence applies."
    return (
        f"## Licence\n\nDerived from {facts.origin.name}, whose checkpoint states the licence "
        f"{facts.origin.license}: it applies to the draft too."
    )
