"""Who proposes: the draft model, a lookup in the text, or each where it fares better."""

from __future__ import annotations

from enum import StrEnum


class Drafter(StrEnum):
    """The source of a round's drafts. None of them changes what is emitted under the coupled rule.

    MODEL   the draft model
    LOOKUP  what followed when the text's last tokens stood there before; no engine is run (``sd``),
            and a draft that was loaded rests
    BOTH    row by row: the lookup where it looks better (``runtime.spec.lookup``), else the model
    """

    MODEL = "model"
    LOOKUP = "lookup"
    BOTH = "both"
