"""What was run, said beside the figures."""

from __future__ import annotations

from dataclasses import dataclass

from engines.bundle import Bundle


@dataclass(frozen=True, slots=True)
class BundleFacts:
    """Of a bundle: models by the names of their checkpoints, how they were built, the settings of
    this run. ``draft`` is None where it has none."""

    name: str
    target: str
    num_parameters: int
    draft: str | None
    num_draft_parameters: int | None
    backend: str
    precision: str
    num_bytes: int
    max_len: int
    num_draft: int
    num_branches: int

    def as_text(self) -> str:
        """One line."""
        draft = "no draft"
        if self.draft is not None and self.num_draft_parameters is not None:
            draft = f"draft {self.draft} ({_millions(self.num_draft_parameters)})"
        return (
            f"{self.name}: target {self.target} ({_millions(self.num_parameters)}), {draft}; "
            f"{self.precision} on {self.backend}, {self.num_bytes / 1e6:.0f} MB; "
            f"K = {self.num_draft}, W = {self.num_branches}"
        )


def bundle_facts(bundle: Bundle, num_draft: int | None, num_branches: int | None) -> BundleFacts:
    """K and W as asked for, else what it was built for."""
    target, draft, limits = bundle.target, bundle.draft, bundle.manifest.limits
    return BundleFacts(
        name=bundle.manifest.name,
        target=target.source.name,
        num_parameters=target.model.num_parameters,
        draft=None if draft is None else draft.source.name,
        num_draft_parameters=None if draft is None else draft.model.num_parameters,
        backend=target.backend,
        precision=target.precision,
        num_bytes=bundle.num_bytes,
        max_len=limits.max_len,
        num_draft=limits.num_draft if num_draft is None else num_draft,
        num_branches=limits.max_branches if num_branches is None else num_branches,
    )


def _millions(number: int) -> str:
    return f"{number / 1e6:.1f} M parameters"
