"""A contestant's figures under the names that vLLM's ``bench serve`` writes, for its readers."""

from __future__ import annotations

from runtime.bench.dataset.figures import ContestantFigures


def vllm_names(figures: ContestantFigures, num_prompts: int) -> dict[str, object]:
    """Milliseconds; ``spec_decode_acceptance_rate`` in percent and the length of rounds with drafts
    alone, 1 + accepted / drafts, and a throughput that counts the prompts' reading, as vLLM has
    them. Where nothing was drafted the ``spec_decode``
    names are left out."""
    record: dict[str, object] = {
        "completed": num_prompts,
        "total_output_tokens": figures.num_tokens,
        "output_throughput": figures.whole_tokens_s,
    }
    for name, spread in (
        ("ttft", figures.ttft_ms),
        ("tpot", figures.tpot_ms),
        ("itl", figures.itl_ms),
    ):
        record |= {
            f"mean_{name}_ms": spread.mean,
            f"median_{name}_ms": spread.p50,
            f"p90_{name}_ms": spread.p90,
            f"p99_{name}_ms": spread.p99,
        }
    if figures.acceptance_rate is not None:
        record |= {
            "spec_decode_acceptance_rate": 100 * figures.acceptance_rate,
            "spec_decode_acceptance_length": 1 + figures.num_accepted / figures.num_proposals,
            "spec_decode_num_drafts": figures.num_proposals,
            "spec_decode_draft_tokens": figures.num_drafted,
            "spec_decode_accepted_tokens": figures.num_accepted,
            "spec_decode_per_position_acceptance_rates": list(figures.acceptance),
        }
    return record
