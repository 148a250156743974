"""What stands behind the handles: an open bundle, and the texts that come of it."""

from __future__ import annotations

import weakref
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from runtime.cli.answers import as_record
from runtime.cli.report import settings_record, to_json
from runtime.completion import Completion
from runtime.embed.inbox import Inbox
from runtime.embed.statuses import StateError
from runtime.engine_loop import EngineLoop, Job
from runtime.intake import Prompt
from runtime.llm import GREEDY, LLM
from runtime.request import GenerateOptions
from runtime.sampling.params import SamplingParams

WARM_UP = GenerateOptions(max_tokens=4, ignore_eos=True, cache_salt="warm-up of the C library")
MODEL_TEXTS = ("SSD_MODEL_MODE", "SSD_MODEL_NOTE", "SSD_MODEL_PATH", "SSD_MODEL_JSON")
REQUEST_TEXTS = (
    *("SSD_REQUEST_TEXT", "SSD_REQUEST_MODE", "SSD_REQUEST_NOTE", "SSD_REQUEST_STOP"),
    "SSD_REQUEST_JSON",
)


class Model:
    """An open bundle with a thread that serves it. Everything may be called from any thread."""

    def __init__(self, llm: LLM) -> None:
        """Takes over an LLM, which is closed with this."""
        self.llm = llm
        self._loop = EngineLoop(llm)

    @classmethod
    def open(cls, bundle: str, **options: Any) -> Model:
        """``LLM.open``, and a few tokens: what the engines' libraries make when they first run, a
        process's exit destroys in the reverse order, and only what is older than the library's
        own exit handler outlives the engines."""
        llm = LLM.open(bundle, **options)
        try:
            model = cls(llm)
        except BaseException:
            llm.close()
            raise
        try:
            model.begin([0], GREEDY, WARM_UP).inbox.wait(None)
        except BaseException:
            model.close()
            raise
        return model

    def begin(self, prompt: Prompt, params: SamplingParams, options: GenerateOptions) -> Text:
        """Begin to continue a prompt; raises as ``LLM.generate`` does for what cannot be served."""
        inbox = Inbox()
        job = self._loop.submit(prompt, params, options, on_delta=inbox.put, on_end=inbox.end)
        return Text(self, inbox, job)

    def cancel(self, job: Job) -> None:
        self._loop.cancel(job)

    def info(self) -> dict[str, int]:
        """The fields of ``ssd_model_info``."""
        llm, settings = self.llm, self.llm.settings
        return {
            "max_len": llm.limits.max_len,
            "max_batch": settings.max_batch,
            "num_draft": settings.num_draft,
            "num_branches": settings.num_branches,
            "vocab_size": llm.bundle.target.model.vocab_size,
            "has_draft": llm.bundle.draft is not None,
            "has_chat_template": llm.has_chat_template,
            "num_running": self._loop.num_running,
            "num_waiting": self._loop.num_waiting,
        }

    def text(self, kind: str) -> str:
        """One of ``MODEL_TEXTS``."""
        llm = self.llm
        match kind:
            case "SSD_MODEL_MODE":
                return llm.mode
            case "SSD_MODEL_NOTE":
                return llm.note or ""
            case "SSD_MODEL_PATH":
                return str(llm.bundle.path)
        record = {
            "bundle": str(llm.bundle.path),
            "mode": llm.mode,
            "note": llm.note,
            "settings": settings_record(llm.settings),
            "limits": asdict(llm.limits),
            "eos_token_ids": llm.eos_token_ids,
            "memory": llm.memory_plan.as_record(),
            **self.info(),
        }
        return to_json(record).rstrip("\n")

    def close(self) -> None:
        """End all texts as cancelled, and free the engines. Blocks; idempotent."""
        self._loop.close()
        self.llm.close()


class Text:
    """One text that comes. Its inbox is for one reader; the rest for any thread. It does not keep
    the model: what a closed one has left to be read holds none of its memory."""

    def __init__(self, model: Model, inbox: Inbox, job: Job) -> None:
        self.inbox = inbox
        self._model = weakref.ref(model)
        self._job = weakref.ref(job)
        self._tokenizer = model.llm.tokenizer

    def cancel(self) -> None:
        """Want no more of it; nothing where it has ended."""
        model, job = self._model(), self._job()
        if model is not None and job is not None:
            model.cancel(job)

    def completion(self) -> Completion:
        """What came of it. Raises StateError while it goes on, and what stopped it if something
        did."""
        ended = self.inbox.ended
        if ended is None:
            raise StateError("the text is not complete; read or wait until SSD_END")
        if isinstance(ended, Exception):
            raise ended
        return ended

    def result(self) -> dict[str, float]:
        """The fields of ``ssd_result`` but ``finish_reason``."""
        completion = self.completion()
        stats, stop = completion.stats, completion.stop_reason
        return {
            "stop_token_id": stop if isinstance(stop, int) else -1,
            "prompt_tokens": completion.prompt_tokens,
            "num_tokens": len(completion.token_ids),
            "num_rounds": stats.num_rounds,
            "num_emitted": stats.num_emitted,
            "num_drafted": stats.num_drafted,
            "num_accepted": stats.num_accepted,
            "num_discarded": stats.num_discarded,
            "num_cached": stats.num_cached,
            "num_hits": -1 if stats.num_hits is None else stats.num_hits,
            "num_jit": stats.num_jit,
            "num_lookup": stats.num_lookup,
            "acceptance_length": stats.acceptance_length,
            "hit_rate": -1.0 if stats.hit_rate is None else stats.hit_rate,
            "prompt_s": stats.prompt_s,
            "decode_s": stats.decode_s,
            "tokens_per_second": stats.tokens_per_second,
        }

    def text(self, kind: str) -> str:
        """One of ``REQUEST_TEXTS``."""
        completion = self.completion()
        match kind:
            case "SSD_REQUEST_TEXT":
                return completion.text
            case "SSD_REQUEST_MODE":
                return completion.mode
            case "SSD_REQUEST_NOTE":
                return completion.note or ""
            case "SSD_REQUEST_STOP":
                return completion.stop_reason if isinstance(completion.stop_reason, str) else ""
        return to_json(as_record(completion, self._tokenizer)).rstrip("\n")


def close_quietly(model: Model) -> None:
    """At a process's exit, where nobody is told."""
    with suppress(Exception):
        model.close()
