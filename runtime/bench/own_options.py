"""Options of ``bench`` itself, without a KIND, and which of them goes with what it is asked for."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from engines.errors import UsageError
from runtime.bench.dataset.peers.api import QUANTISATIONS
from runtime.bench.dataset.peers.registry import PEERS
from runtime.cli.options import FALLBACKS, MODES, text, whole
from runtime.placement import AUTO
from runtime.spec.cost.times import SHORTEST_MS
from runtime.spec.drafter import Drafter

OWN = "own_"
"""Begins their names among the arguments: a KIND has options of the same names."""
TASKS = ("replay", "log_outcomes", "dataset")
"""Each asks for a measurement; the first option of a group."""
EVERYWHERE = ("json", "quiet")
STDOUT = "-"
"""Value of ``--json`` without a file, or in the place of one."""
_GOES_WITH: dict[str, tuple[str, ...]] = {
    "replay": (
        *("clock", "rounds", "run", "target_ms", "draft_ms", "batch", "num_draft", "branches"),
    ),
    "log_outcomes": (
        *("bundle", "device", "prompts", "num_prompts", "max_tokens", "num_draft", "branches"),
        *("fallback", "temperature", "no_chat"),
    ),
    "dataset": (
        *("bundle", "device", "modes", "limit", "repeats", "reopen", "max_tokens", "num_draft"),
        *("branches", "drafters", "temperature", "no_chat", "html"),
        *("peers", "peer_model", "peer_quantisation"),
    ),
}


def add_own_options(parser: argparse.ArgumentParser) -> None:
    """All of them; None, or False, is what nobody asked for."""
    group = parser.add_argument_group(
        "replay", "the real scheduler over engines that take prescribed times"
    )
    _add(
        group,
        "--replay",
        type=text,
        metavar="PROFILE",
        help="a shipped profile (see below), a .json profile, or a .jsonl outcome log",
    )
    _add(
        group,
        "--clock",
        choices=("virtual", "real"),
        help="virtual: simulated, the same figures everywhere; real: this machine's, the runtime's "
        "own work included (default: virtual)",
    )
    _add(
        group,
        "--rounds",
        type=whole(1),
        metavar="N",
        help="rounds of each setting that count (default: 3000 of one row, 600 with the real "
        "clock; fewer of several rows)",
    )
    _add(group, "--run", type=text, metavar="TEXT", help="only runs with TEXT in their name")
    for option, what in (("--target-ms", "verification"), ("--draft-ms", "draft step")):
        _add(
            group,
            option,
            type=_milliseconds,
            metavar="MS",
            help=f"with an outcome log: milliseconds of a {what}",
        )
    _add(
        group, "--batch", type=whole(1), metavar="B", help="with an outcome log: rows (default: 1)"
    )
    group = parser.add_argument_group("outcomes", "what your own texts do, for plan and --replay")
    _add(group, "--log-outcomes", type=Path, metavar="FILE", help="write an outcome log")
    _add(
        group,
        "--prompts",
        type=Path,
        metavar="FILE",
        help=".txt with a prompt a line, or .jsonl (default: a built-in dozen)",
    )
    _add(group, "--num-prompts", type=whole(1), metavar="N", help="use the first N prompts only")
    _add(
        group,
        "--fallback",
        choices=FALLBACKS,
        help="what a round goes on with after a miss, as for generate (default: jit)",
    )
    _add_dataset_options(parser)
    group = parser.add_argument_group("bundle and setting")
    _add(group, "--bundle", type=Path, metavar="DIR", help="bundle directory to run")
    _add(group, "--device", type=text, metavar="D", help="where to run it, as for generate")
    _add(group, "--max-tokens", type=whole(1), metavar="N", help="longest answer (default: 128)")
    _add(group, "--num-draft", type=whole(1), metavar="K", help="tokens drafted a round")
    _add(group, "--branches", type=whole(1), metavar="W", help="outcomes prepared ahead")
    _add(group, "--temperature", type=float, metavar="T", help="of every prompt (default: 0)")
    _add(
        group,
        "--no-chat",
        action="store_true",
        help="take the prompts as they are, without the bundle's chat template",
    )
    group = parser.add_argument_group("output")
    _add(
        group,
        "--json",
        nargs="?",
        const=STDOUT,
        type=_json_file,
        metavar="FILE.json",
        help="one JSON object, in FILE.json or on stdout with no more",
    )
    _add(
        group,
        "--html",
        type=_html_file,
        metavar="FILE.html",
        help="with a data set: also a page with tables and plots, in one file",
    )
    _add(group, "--quiet", action="store_true", help="results and errors only")


def _add_dataset_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data set", "all modes on the same prompts, by category")
    _add(
        group,
        "--dataset",
        type=Path,
        metavar="FILE",
        help=".jsonl in the form of Spec-Bench: a category, and turns, prompt or question",
    )
    _add(
        group,
        "--modes",
        type=_modes,
        metavar="M,M",
        help="of ar, sd, ssd, auto; ar always runs (default: all)",
    )
    _add(group, "--limit", type=whole(1), metavar="N", help="the first N prompts of each category")
    _add(
        group,
        "--repeats",
        type=whole(1),
        metavar="N",
        help="answer all prompts N times over; a prompt counts with its median (default: 1)",
    )
    _add(
        group,
        "--drafters",
        type=_drafters,
        metavar="D[,D]",
        help="who drafts, as for generate; of several, each is measured (default: auto)",
    )
    _add(
        group,
        "--reopen",
        action="store_true",
        help="hold one mode in memory at a time: a mode answers a whole category in its turn, "
        "instead of one prompt",
    )
    group = parser.add_argument_group(
        "peers", "other engines on the same prompts, greedy, on as many threads as ar"
    )
    _add(
        group,
        "--peers",
        type=_peers,
        metavar="P,P",
        help=f"of {', '.join(PEERS)} (pip install 'ssd-trt[peers]')",
    )
    _add(
        group,
        "--peer-model",
        type=Path,
        metavar="PATH",
        help="their weights: a .gguf file, for transformers also a folder (default: the checkpoint "
        "that the bundle was built from)",
    )
    _add(
        group,
        "--peer-quantisation",
        choices=QUANTISATIONS,
        metavar="Q",
        help="of llama.cpp: stored, as the file has it; q8_0, requantised to 8 bits for this run "
        "(default: stored)",
    )


def task_of(args: argparse.Namespace) -> str | None:
    """Which of TASKS is asked for, None for none. Raises UsageError for several, and for options
    that do not go with it."""
    given = [name for name in _own_names(args) if _is_given(args, name)]
    asked = [name for name in TASKS if name in given]
    if len(asked) > 1:
        raise UsageError(
            f"{_option(asked[0])} and {_option(asked[1])} are two measurements; ask for one"
        )
    if not asked:
        given = [name for name in given if name not in EVERYWHERE]
        if given:
            raise UsageError(
                f"{_option(given[0])} goes with {' or '.join(map(_option, _homes(given[0])))}"
            )
        return None
    for name in given:
        if name not in (*TASKS, *EVERYWHERE, *_GOES_WITH[asked[0]]):
            raise UsageError(
                f"{_option(name)} has no effect with {_option(asked[0])}; leave it away"
            )
    if "bundle" in _GOES_WITH[asked[0]] and "bundle" not in given:
        raise UsageError(f"{_option(asked[0])} needs a bundle to run: --bundle DIR")
    return asked[0]


def refuse_own(args: argparse.Namespace, kind: str) -> None:
    """Raise UsageError for options of ``bench`` itself that stand before a KIND."""
    for name in _own_names(args):
        if _is_given(args, name):
            raise UsageError(
                f"{_option(name)} stands before {kind!r} and is not an option of it there; put it "
                f"behind, or leave {kind!r} away"
            )


def own_arguments(args: argparse.Namespace) -> argparse.Namespace:
    """The same arguments, with the names that the options have."""
    own = {name: getattr(args, OWN + name) for name in _own_names(args)}
    return argparse.Namespace(**vars(args) | own)


def _add(group: argparse._ActionsContainer, option: str, **how: Any) -> None:
    group.add_argument(option, dest=OWN + option[2:].replace("-", "_"), **how)


def _own_names(args: argparse.Namespace) -> list[str]:
    return [name.removeprefix(OWN) for name in vars(args) if name.startswith(OWN)]


def _is_given(args: argparse.Namespace, name: str) -> bool:
    value = getattr(args, OWN + name)
    return value is not None and value is not False  # 0 equals False, and is given


def _homes(name: str) -> Iterable[str]:
    return (task for task, names in _GOES_WITH.items() if name in names)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _modes(value: str) -> tuple[str, ...]:
    """The baseline first."""
    return _names(f"ar,{value}", MODES, "mode")


def _drafters(value: str) -> tuple[str, ...]:
    return _names(value, (AUTO, *Drafter), "drafter")


def _peers(value: str) -> tuple[str, ...]:
    return _names(value, tuple(PEERS), "peer")


def _names(value: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    """Of ``known``, in the order given, each once."""
    names = [name.strip() for name in value.split(",")]
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(
                f"{name!r} is no {what} (choose from {', '.join(known)})"
            )
    return tuple(dict.fromkeys(names))


def _json_file(value: str) -> str:
    """Of a file, so that the name of a KIND, which may stand behind, is not taken for one."""
    if value != STDOUT and not value.endswith(".json"):
        raise argparse.ArgumentTypeError(
            f"{value!r} is no file named .json; --json of a KIND stands behind the KIND"
        )
    return text(value)


def _html_file(value: str) -> Path:
    if not value.endswith((".html", ".htm")):
        raise argparse.ArgumentTypeError(f"{value!r} is no file named .html")
    return Path(text(value))


def _milliseconds(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not SHORTEST_MS <= number <= 1e6:
        raise argparse.ArgumentTypeError(
            f"{value!r} is not a number of milliseconds from {SHORTEST_MS:g} to 1e+06"
        )
    return number
