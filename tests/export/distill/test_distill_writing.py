"""The target writes: many rows at once, tasks over what it wrote, shards that survive a stop."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from engines.errors import UsageError
from export.checkpoint.api import open_checkpoint
from export.distill import shards, write
from export.distill.author import Author
from export.distill.chat import Frame, frame_of
from export.distill.corpus import Sample
from export.distill.generate.generator import Done, Job
from export.distill.stop import Stop, held_back
from export.distill.text import load_target
from tests.helpers.checkpoints import make_llama


def toy_frame() -> Frame:
    """One id a character."""
    return Frame(
        before="<u>",
        after="<a>",
        encode=lambda text: [ord(each) for each in text],
        decode=lambda ids: "".join(chr(each) for each in ids if each != 2),
        end_ids=(2,),
    )


def written(text: str) -> list[int]:
    return [*(ord(each) for each in text), 2]


def shown(job: Job) -> str:
    return "".join(map(chr, job.prompt))


def done(job: Job, text: str) -> Done:
    return Done(job, written(text), np.zeros((len(job.prompt) + len(text), 0), np.float16))


def test_a_question_is_answered_as_a_users_would_be() -> None:
    """The answer's prompt is the whole chat template around opening and continuation."""
    author = Author(toy_frame(), seed=1, max_len=10_000)
    job = next(j for j in iter(author.next_job, None) if not shown(j).endswith("<a>"))
    assert shown(job).startswith("<u>")
    assert author.take(done(job, " is this?")) is None
    answer = author.next_job()
    assert shown(answer) == shown(job) + " is this?<a>"
    taken = author.take(done(answer, "That."))
    assert taken is not None
    sample, prompt = taken
    assert sample.ids[sample.answer_start :].tolist() == written("That.")
    assert prompt is None


def test_answers_become_passages_of_every_kind_of_task() -> None:
    """Without tasks over passages the draft is weak at translation, summaries and documents."""
    author = Author(toy_frame(), seed=2, max_len=100_000)
    passage = "A fox ran over the hill. It saw a hen. The hen flew off. " * 3
    seen = []
    for _ in range(1200):
        job = author.next_job()
        seen.append(shown(job))
        author.take(done(job, passage))
    tasks = [each for each in seen if passage.strip()[:23] in each]
    kinds = ("ummar", "English to", "to English", "Document 2", "word for word", "Rewrite")
    for kind in kinds:
        assert any(kind in each for each in tasks), kind
    assert any("How many" in each for each in seen)


def test_the_users_prompts_come_first_and_once() -> None:
    author = Author(toy_frame(), 0, ["mine", "also"], max_len=1000)
    first, second = author.next_job(), author.next_job()
    assert {shown(first), shown(second)} == {"<u>mine<a>", "<u>also<a>"}
    taken = [author.take(done(job, "ok")) for job in (first, second)]
    assert {each and each[1] for each in taken} == {"mine", "also"}
    assert not any("mine" in shown(author.next_job()) for _ in range(50))


def test_answers_to_prompts_are_as_long_and_as_greedy_as_asked_for() -> None:
    prompts = [f"question {index}" for index in range(40)]
    for share in (0.0, 0.5, 1.0):
        author = Author(toy_frame(), 0, prompts, answer_tokens=50, greedy_share=share)
        jobs = [author.next_job() for _ in prompts]
        assert {job.max_tokens for job in jobs} == {50}
        assert {job.temperature == 0.0 for job in jobs} == {share > 0.0, share == 1.0}


def test_a_prompt_that_fills_its_row_is_not_answered_by_nothing() -> None:
    author = Author(toy_frame(), 0, ["x" * 194, "x" * 193], 200, answer_tokens=1)
    job = author.next_job()
    assert (len(job.prompt), job.max_tokens) == (199, 1)


def test_a_stop_leaves_out_no_kind_of_prompts() -> None:
    """A file sorted by kind: whenever the time is over, some of each have been answered."""
    prompts = [f"{kind}{number}" for kind in "abcd" for number in range(100)]
    author = Author(toy_frame(), 0, prompts, max_len=1000)
    first = [shown(author.next_job()) for _ in range(60)]
    assert {each[len("<u>")] for each in first} == set("abcd")


def test_tasks_wait_for_the_users_prompts() -> None:
    """One of each answer: time for the prompts would be halved. Questions wait for tasks, too."""
    prompts = [f"question {index}" for index in range(30)]
    author = Author(toy_frame(), 0, prompts, max_len=10_000)
    passage = "A fox ran over the hill. It saw a hen. The hen flew off. " * 3
    for _ in prompts:
        job = author.next_job()
        assert shown(job).startswith("<u>question")
        author.take(done(job, passage))
    assert "A fox" in shown(author.next_job())


def test_a_prompt_without_room_for_an_answer_is_left_out() -> None:
    author = Author(toy_frame(), 0, ["x" * 300, "short"], max_len=200)
    assert shown(author.next_job()) == "<u>short<a>"
    author.next_job()
    assert author.num_too_long == 1


def test_sums_without_room_for_an_answer_are_left_out() -> None:
    """A target of few positions: nothing is queued then, and there is something else to write."""
    author = Author(toy_frame(), seed=3, max_len=60)
    assert all(len(author.next_job().prompt) < 60 for _ in range(200))


def test_in_few_positions_every_question_leaves_room_for_its_answer() -> None:
    """Long openings have none in 80 positions, and a question of 48 tokens would take the rest."""
    author = Author(toy_frame(), seed=3, max_len=80)
    for _ in range(200):
        job = author.next_job()
        if shown(job).endswith("<a>"):  # a sum, asked in full
            continue
        rest = "?" * job.max_tokens
        assert author.take(done(job, rest)) is None
        assert shown(author.next_job()) == f"{shown(job)}{rest}<a>"


def test_a_target_without_room_for_a_question_is_refused() -> None:
    """It ended with the generator's ValueError in the middle of the writing."""
    with pytest.raises(UsageError, match=r"the target's 16 positions leave no room .*--data"):
        Author(toy_frame(), seed=3, max_len=16)


@pytest.mark.torch
def test_writing_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stop nothing written is lost, no prompt is answered twice, and text is new."""
    monkeypatch.setattr("export.distill.write.NUM_ROWS", {"cpu": 4})
    monkeypatch.setattr("export.distill.author.ANSWER_TOKENS", 12)
    checkpoint = open_checkpoint(make_llama(tmp_path / "m"))
    target, frame, folder = load_target(checkpoint), frame_of(checkpoint), tmp_path / "text"
    ticks = iter(range(10**9))

    def go(seconds: float, stop: Stop) -> list[Sample]:
        write.write_text(
            target, frame, folder, seconds=seconds, seed=5, prompts=["hello", "there", "you"],
            keep_states=True, stop=stop, clock=lambda: float(next(ticks)),
            report=lambda *_: stop.ask(signal.SIGINT) if seconds > 1000 else None,
        )  # fmt: skip
        return list(shards.read(folder, shards.names(folder, write.PREFIX), 320))

    first = go(2000.0, Stop())  # stopped at the first answer
    assert 1 <= len(first) <= 4
    spent = write.seconds_spent(folder)
    second = go(spent + 100.0, Stop())
    assert len(second) > len(first)
    assert [s.ids.tolist() for s in second[: len(first)]] == [s.ids.tolist() for s in first]
    names = shards.names(folder, write.PREFIX)
    answered = [each for name in names for each in shards.notes(folder, name).answered]
    assert sorted(answered) == sorted(map(shards.digest, ["hello", "there", "you"]))
    assert write.seconds_spent(folder) >= spent + 100.0
    for sample in second:
        assert sample.states is not None
        assert sample.states.shape == (len(sample) - 1, 32)


def test_a_shard_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = np.ones((3, 8), np.float16)
    sample = Sample(np.array([1, 2, 3, 4]), 2, 0.5, states)
    notes = shards.Notes(2.5, (shards.digest("hello"),))
    shards.write(tmp_path, "a-0", [sample, sample], notes)
    [one, two] = shards.read(tmp_path, shards.names(tmp_path, "a"), 10)
    assert two.states is not None
    assert two.states.tolist() == states.tolist()
    assert (one.ids.tolist(), one.temperature) == ([1, 2, 3, 4], 0.5)
    assert shards.notes(tmp_path, "a-0") == notes

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez_compressed", interrupt)
    with pytest.raises(KeyboardInterrupt):
        shards.write(tmp_path, "a-1", [sample])
    assert shards.names(tmp_path, "a") == ["a-0"]
    assert not list(tmp_path.glob(".*"))


def test_states_of_other_text_are_refused(tmp_path: Path) -> None:
    shards.write(tmp_path, "a-0", [Sample(np.array([1, 2]), 1, 0.0, np.ones((2, 8), np.float16))])
    np.save(tmp_path / "a-0.npy", np.ones((5, 8), np.float16))
    with pytest.raises(UsageError, match="does not belong"):
        list(shards.read(tmp_path, ["a-0"], 10))


def test_states_that_a_killed_run_has_left_are_not_taken_for_those_of_other_text(
    tmp_path: Path,
) -> None:
    np.save(tmp_path / "a-0.npy", np.ones((5, 8), np.float16))  # killed before its .npz
    shards.write(tmp_path, "a-0", [Sample(np.array([1, 2]), 1, 0.0)])
    [sample] = shards.read(tmp_path, ["a-0"], 10)
    assert sample.states is None


@pytest.mark.parametrize("width", [0, 4096])
def test_a_full_disk_names_the_file_and_the_way_out(tmp_path: Path, width: int) -> None:
    """In soft writing it is the states that do not fit, in hard writing the ids."""
    ids = np.random.default_rng(0).integers(0, 2**32, 4096)
    states = np.ones((4, width), np.float16) if width else None
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limit[1]))
    try:
        with pytest.raises(UsageError, match=r"a-0\.np[yz] cannot be written .*--work") as caught:
            shards.write(tmp_path, "a-0", [Sample(ids, 1, 0.0, states)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def interrupt_myself() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_waits_and_then_acts() -> None:
    """Acting at once, it would leave a step or a file half done; forgotten, nothing would end."""
    noted = []

    def work() -> None:
        with held_back() as stop:
            noted.append(bool(stop))
            interrupt_myself()
            noted.append(bool(stop))

    with pytest.raises(KeyboardInterrupt):
        work()
    assert noted == [False, True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_signal_does_not_wait() -> None:
    def work() -> None:
        with held_back():
            interrupt_myself()
            interrupt_myself()
            pytest.fail("the second ctrl-C was held back too")

    with pytest.raises(KeyboardInterrupt):
        work()
