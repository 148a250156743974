"""``bench --log-outcomes``: what rounds of the user's own prompts came to, as a file."""

from __future__ import annotations

import argparse
import os
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from engines.errors import SsdError, UsageError, as_line
from runtime.bench import termination
from runtime.bench.kind import Kind, Show, Tick
from runtime.bench.opening import open_mode
from runtime.cli.options import check_fits
from runtime.cli.prompts import many_prompts
from runtime.cli.report import number, percent, table
from runtime.sampling.params import SamplingParams
from runtime.spec.cost.laws import DRAFTED
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.outcome_log import LoggedRound, LogHeader, LogWriter
from runtime.spec.plan import RoundReport, RowReport
from runtime.trace.chrome import require_writable

MAX_TOKENS = 128
INTERRUPTED, TERMINATED = "interrupted", "terminated"
EXIT_CODES = {INTERRUPTED: 130, TERMINATED: termination.EXIT_CODE}
"""After ctrl-C and SIGTERM; 2 after an engine's failure."""
_DRAFTED = [kind.name.lower() for kind in DRAFTED]

FORMULAS = {
    "tokens/round": "1 + accepted drafts, the mean over the rounds of a kind",
    "hit rate": "outcomes that had been prepared / outcomes looked up, of the rounds of a kind",
    "kind": "where a round's drafts came from: prepared ahead (hit), drafted after a miss (jit), "
    "copied from the text (lookup), or nowhere (none)",
}


@dataclass(frozen=True, slots=True)
class KindCounts:
    """Logged rounds of one kind."""

    kind: str
    num_rounds: int
    tokens_round: float
    hit_rate: float | None


@dataclass(frozen=True, slots=True)
class OutcomeFigures:
    """What was written, and where: the rounds of ``num_texts`` whole answers.

    ``ended_by``: what came before the last of the ``num_planned`` answers, None where nothing did.
    """

    path: str
    num_texts: int
    num_planned: int
    ended_by: str | None
    num_rounds: int
    num_draft: int
    num_branches: int
    fallback: str
    kinds: tuple[KindCounts, ...]

    @property
    def cut_short(self) -> tuple[str, int] | None:
        """See ``runtime.bench.kind.CutShort``."""
        if self.ended_by is None:
            return None
        kept = f"the outcomes of {self.num_texts} of {self.num_planned} prompts are in {self.path}"
        return as_line(f"{self.ended_by}; {kept}"), EXIT_CODES.get(self.ended_by, 2)

    def as_text(self) -> str:
        """A table by kind, and what the log is good for."""
        rows = [
            [
                each.kind,
                str(each.num_rounds),
                number(each.tokens_round, 2),
                percent(each.hit_rate),
            ]
            for each in self.kinds
        ]
        summary = (
            f"{self.path}: {self.num_rounds} rounds of {self._texts}, K = "
            f"{self.num_draft}, W = {self.num_branches}, fallback {self.fallback}"
        )
        return "\n".join(
            (
                summary,
                "",
                table(("kind", "rounds", "tokens/round", "hit rate"), rows),
                *self._next(),
            )
        )

    @property
    def _texts(self) -> str:
        cut = "" if self.ended_by is None else f" (of {self.num_planned}: {self.ended_by})"
        return f"{self.num_texts} texts{cut}"

    def _next(self) -> list[str]:
        if not any(each.kind in _DRAFTED for each in self.kinds):
            return ["no round has drafted tokens, so nothing is known of the draft: log more text"]
        path = shlex.quote(self.path)
        return [
            f"next: python -m runtime plan --outcomes {path} --target-ms A --draft-ms B",
            f"      python -m runtime bench --replay {path} --target-ms A --draft-ms B",
        ]


class Recorder:
    """Rounds as they are reported, one text at a time; fits ``runtime.scheduler.OnRound``.

    Whether an outcome had been prepared, and where its bonus token ranked, is told with the round
    after it: of a text's last round it never is.
    """

    def __init__(self) -> None:
        self.rounds: list[LoggedRound] = []
        self._text = -1
        self._open: RowReport | None = None

    def begin(self, text: int) -> None:
        """What comes next is of that text."""
        self.end()
        self._text = text

    def end(self) -> None:
        """The text is over: the last outcome was not looked up."""
        self._close(None, None)

    def __call__(self, report: RoundReport) -> None:
        for row in report.rows:
            self._close(row.rank, row.hit)
            # Without drafts because the draft lags behind is no verdict on the draft.
            self._open = None if row.is_behind else row

    def _close(self, rank: int | None, hit: bool | None) -> None:
        row, self._open = self._open, None
        if row is None:
            return
        # What hit at the end of a text may have had no room for drafts.
        kind = row.kind if row.num_drafted else ProposalKind.NONE
        self.rounds.append(LoggedRound(self._text, kind, row.num_drafted, row.accepted, rank, hit))


class Logging:
    """Texts answered one by one, and the rounds of each whole answer written to a log.

    num_texts   whole answers; ``num_rounds`` their rounds
    ended_by    what came before the last answer
    """

    def __init__(self, log: LogWriter, recorder: Recorder) -> None:
        self.num_texts = self.num_rounds = 0
        self.ended_by: str | None = None
        self._log, self._recorder = log, recorder
        self._num_written = 0

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        answer: Callable[[Sequence[int]], object],
        tick: Tick,
    ) -> None:
        """Ctrl-C, SIGTERM and an engine's failure end it early, and are raised where there is no
        whole answer."""
        try:
            for ids in prompts:
                self._recorder.begin(self.num_texts)
                try:
                    answer(ids)
                except SsdError as failure:
                    self._end(f"error: prompt {self.num_texts + 1} failed: {failure}", failure)
                    return
                self._recorder.end()
                # Whole from here on, whatever comes while it is written.
                self.num_texts, self.num_rounds = self.num_texts + 1, len(self._recorder.rounds)
                self._write()
                tick(self.num_texts, f"{self.num_rounds} rounds")
        except KeyboardInterrupt as cause:
            self._end(INTERRUPTED, cause)
        except SystemExit as cause:
            self._end(TERMINATED, cause)

    def _end(self, ended_by: str, cause: BaseException) -> None:
        if not self.num_texts:
            raise cause
        self.ended_by = ended_by
        self._write()

    def _write(self) -> None:
        while self._num_written < self.num_rounds:
            self._log.add(self._recorder.rounds[self._num_written])
            self._num_written += 1


def measure(args: argparse.Namespace, show: Show) -> OutcomeFigures:
    """Answer the prompts in ``ssd`` and log their rounds.

    Ctrl-C, SIGTERM and an engine's failure keep the rounds of the answers that are whole.
    """
    path: Path = args.log_outcomes
    require_writable(path, "the outcome log", "--log-outcomes")
    if args.prompts is not None and os.path.realpath(path) == os.path.realpath(args.prompts):
        raise UsageError(f"--log-outcomes {path} would replace the --prompts; name another file")
    texts = many_prompts(args.prompts, args.num_prompts)
    if args.fallback is None:
        args.fallback = Fallback.JIT.value  # the one whose misses say how drafts fare after a miss
    with termination.heard():
        return _measure(args, path, texts, show)


def _measure(
    args: argparse.Namespace, path: Path, texts: Sequence[str], show: Show
) -> OutcomeFigures:
    params = SamplingParams(temperature=args.temperature or 0.0)
    recorder = Recorder()
    # Lookups in front of the model would leave out the rounds that it finds easy.
    drafter = Drafter.MODEL.value
    with open_mode(args, "ssd", on_round=recorder, drafter=drafter) as llm:
        settings = llm.settings
        if llm.mode != "ssd":
            raise UsageError(f"outcomes are those of ssd, which cannot run here: {llm.note}")
        prompts = []
        for i, text in enumerate(texts, start=1):
            prompts.append(llm.encode(text, chat=llm.has_chat_template and not args.no_chat))
            check_fits(f"prompt {i}", len(prompts[-1]), llm.limits.max_len)
        header = LogHeader(
            bundle=args.bundle.resolve().name,
            mode="ssd",
            num_draft=settings.num_draft,
            num_ranks=settings.num_branches,
            num_branches=settings.num_branches,
            fallback=settings.fallback.value,
            temperature=params.temperature,
        )
        answer = partial(llm.generate, params=params, max_tokens=args.max_tokens or MAX_TOKENS)
        with show("prompts", len(prompts)) as tick, LogWriter(path, header) as log:
            logging = Logging(log, recorder)
            logging.run(prompts, answer, tick)
    return OutcomeFigures(
        path=str(path),
        num_texts=logging.num_texts,
        num_planned=len(prompts),
        ended_by=logging.ended_by,
        num_rounds=logging.num_rounds,
        num_draft=header.num_draft,
        num_branches=header.num_branches,
        fallback=header.fallback,
        kinds=tuple(_counts(recorder.rounds[: logging.num_rounds])),
    )


def _counts(rounds: list[LoggedRound]) -> list[KindCounts]:
    found = []
    for kind in ProposalKind:
        own = [each for each in rounds if each.kind is kind]
        if not own:
            continue
        hits = Counter(each.hit for each in own)
        known = hits[True] + hits[False]
        found.append(
            KindCounts(
                kind=kind.name.lower(),
                num_rounds=len(own),
                tokens_round=1 + sum(each.accepted for each in own) / len(own),
                hit_rate=hits[True] / known if known else None,
            )
        )
    return found


KIND = Kind(
    name="outcomes",
    purpose="outcomes of your own prompts, for plan and --replay",
    description="",
    examples="",
    packages=("numpy", "onnxruntime", "tokenizers"),
    formulas=FORMULAS,
    add_options=lambda _: None,
    measure=measure,
)
