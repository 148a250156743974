"""Decides what the target writes next: questions, answers to them, and tasks over its answers.

A question is continued from a short opening after the chat template's user header, then answered.
Answers serve as passages for tasks: summaries, translation there and back, questions over
documents, copying, rewriting, arithmetic. Prompts of the user's own come first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engines.errors import UsageError
from export.distill import seeds
from export.distill.chat import Frame
from export.distill.corpus import Sample
from export.distill.generate.generator import Done, Job

MAX_LEN = 1024  # prompt and answer together, tokens
QUESTION_TOKENS = 48
QUESTION_TEMPERATURE = 1.0
ANSWER_TOKENS, ARTICLE_TOKENS = 192, 448
GREEDY_SHARE = 0.5  # of the answers: what a draft is measured on
WARM_TEMPERATURES = (0.7, 1.0)  # of the others
ARTICLE_SHARE, SUM_SHARE = 0.2, 0.15  # of the questions
TASKS_A_PASSAGE = 1
LEAST_PASSAGE = 60  # tokens
NUM_PASSAGES = 256  # remembered, and tasks over them that wait at most


@dataclass(frozen=True, slots=True)
class _Question:
    opening: str
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class _Answer:
    question: str
    is_prompt: bool = False  # the question is one of the user's prompts
    translated_to: str | None = None
    is_task: bool = False


class Author:
    """``next_job`` and ``take`` are what a Generator is fed from and empties into.

    ``num_too_long`` counts the user's prompts that were left out so far: no room for an answer.
    """

    def __init__(
        self,
        frame: Frame,
        seed: int,
        prompts: Sequence[str] = (),
        max_len: int = 0,
        *,
        answer_tokens: int = ANSWER_TOKENS,
        greedy_share: float = GREEDY_SHARE,
    ) -> None:
        """``prompts`` are the user's, each answered with at most ``answer_tokens``;
        ``greedy_share`` of all answers are greedy. Raises UsageError where ``max_len`` has no room
        for a question and its answer."""
        self._frame, self._max_len = frame, max_len or MAX_LEN
        self._answer_tokens, self._greedy_share = answer_tokens, greedy_share
        self._rng = np.random.default_rng(seed)
        self._openings = [each for each in seeds.OPENINGS if self._question_room(each) > 0]
        if not self._openings:
            raise UsageError(
                f"the target's {self._max_len:,} positions leave no room for a question; give text "
                "that it wrote with --data"
            )
        self.num_too_long = 0
        # In random order: whenever writing is stopped, prompts of every kind have been answered.
        self._prompts = deque(prompts[at] for at in self._rng.permutation(len(prompts)))
        self._answers: deque[Job] = deque()
        self._tasks: deque[Job] = deque(maxlen=NUM_PASSAGES)
        self._passages: deque[tuple[str, str]] = deque(maxlen=NUM_PASSAGES)

    def next_job(self) -> Job:
        """What to write next: an answer to what has just been asked; the user's prompts as long as
        there are any; then tasks over what has been written, the newest ones; then questions."""
        while self._prompts and not self._answers:
            text = self._prompts.popleft()
            self._queue(text, _Answer(text, is_prompt=True), self._answer_tokens)
            if not self._answers:
                self.num_too_long += 1
        for waiting in (self._answers, self._tasks):
            if waiting:
                return waiting.popleft()
        return self._question()

    def take(self, done: Done) -> tuple[Sample, str | None] | None:
        """Use what was written: a sample and the user's prompt it answers, or None."""
        tag, text = done.job.tag, self._frame.decode(done.answer)
        if isinstance(tag, _Question):
            question = tag.opening + text
            self._queue(question, _Answer(question), tag.answer_tokens)
            return None
        assert isinstance(tag, _Answer)
        self._follow_up(tag, done, text.strip())
        ids = np.array([*done.job.prompt, *done.answer], np.int64)
        states = done.states if done.states.shape[1] else None
        sample = Sample(ids, len(done.job.prompt), done.job.temperature, states)
        return sample, tag.question if tag.is_prompt else None

    def _question(self) -> Job:
        kind = self._rng.random()
        tokens = ANSWER_TOKENS
        if kind < ARTICLE_SHARE:
            opening, tokens = self._one_of(seeds.ARTICLE_OPENINGS), ARTICLE_TOKENS
        elif kind < ARTICLE_SHARE + SUM_SHARE:
            if self._rng.random() < 0.5:
                text = self._sum(self._one_of(seeds.SUMS))
                self._queue(text, _Answer(text, is_task=True), tokens)
                if self._answers:  # none where the target's positions leave no room
                    return self._answers.popleft()
            opening = self._sum(self._one_of(seeds.SUM_OPENINGS))
        else:
            opening = self._one_of(seeds.OPENINGS)
        if self._question_room(opening) < 1:
            opening, tokens = self._one_of(self._openings), ANSWER_TOKENS
        prompt = self._frame.encode(self._frame.before + opening)
        num_tokens = min(QUESTION_TOKENS, self._question_room(opening))
        return Job(prompt, num_tokens, QUESTION_TEMPERATURE, _Question(opening, tokens))

    def _question_room(self, opening: str) -> int:
        """Tokens that a question may have after its opening, with an answer to follow."""
        framed = self._frame.encode(self._frame.before + opening + self._frame.after)
        return self._max_len - len(framed) - _least_answer(ANSWER_TOKENS)

    def _follow_up(self, tag: _Answer, done: Done, text: str) -> None:
        if tag.translated_to is not None and text:
            back = seeds.TRANSLATE.format(source=tag.translated_to, to="English", text=text)
            self._task(back)
        if tag.is_task or len(done.answer) < LEAST_PASSAGE:
            return
        self._passages.append((tag.question, text))
        for _ in range(TASKS_A_PASSAGE):
            self._task_over(tag.question, text)

    def _task_over(self, question: str, text: str) -> None:
        kind = int(self._rng.integers(8))
        if kind < 2:
            self._task(self._one_of(seeds.SUMMARIES).format(text=text))
        elif kind < 4:
            to = self._one_of(seeds.LANGUAGES)
            part = _first_sentences(text, int(self._rng.integers(1, 4)))
            prompt = seeds.TRANSLATE.format(source="English", to=to, text=part)
            self._task(prompt, translated_to=to)
        elif kind < 6:
            documents = [text, self._passages[self._rng.integers(len(self._passages))][1]]
            self._rng.shuffle(documents)
            listed = "\n\n".join(f"Document {i + 1}: {each}" for i, each in enumerate(documents))
            form = self._one_of(seeds.DOCUMENTS)
            self._task(form.format(documents=listed, question=question))
        elif kind == 6:
            part = _first_sentences(text, int(self._rng.integers(2, 8)))
            self._task(self._one_of(seeds.COPIES).format(text=part))
        else:
            self._task(self._one_of(seeds.REWRITES + seeds.EXTRACTIONS).format(text=text))

    def _task(self, text: str, translated_to: str | None = None) -> None:
        tag = _Answer(text, translated_to=translated_to, is_task=True)
        job = self._answer_to(text, tag, ANSWER_TOKENS)
        if job is not None:
            self._tasks.append(job)

    def _queue(self, text: str, tag: _Answer, max_tokens: int) -> None:
        job = self._answer_to(text, tag, max_tokens)
        if job is not None:
            self._answers.append(job)

    def _answer_to(self, text: str, tag: _Answer, max_tokens: int) -> Job | None:
        # Encoded as one text, as a user's question will be, not as the pieces it was written in.
        prompt = self._frame.encode(self._frame.before + text + self._frame.after)
        room = self._max_len - len(prompt)
        if room < _least_answer(max_tokens) or not prompt:
            return None
        heat = 0.0
        if self._rng.random() >= self._greedy_share:
            heat = WARM_TEMPERATURES[int(self._rng.integers(len(WARM_TEMPERATURES)))]
        return Job(prompt, min(max_tokens, room), heat, tag)

    def _sum(self, form: str) -> str:
        a, b, c = (int(self._rng.integers(low, high)) for low, high in ((20, 500), (2, 20), (2, 9)))
        name, things = self._one_of(seeds.NAMES), self._one_of(seeds.THINGS)
        return form.format(name=name, things=things, a=a, b=b, c=c)

    def _one_of(self, choices: Sequence[str]) -> str:
        return choices[int(self._rng.integers(len(choices)))]


def _least_answer(max_tokens: int) -> int:
    """Room below which an answer of at most ``max_tokens`` would be cut too short to learn from."""
    return max(1, min(max_tokens, ANSWER_TOKENS) // 4)


def _first_sentences(text: str, num: int) -> str:
    return ". ".join(text.split(". ")[:num]).strip()
