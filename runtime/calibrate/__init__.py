"""What is found out when a bundle is loaded, and remembered (``runtime.memo``).

    choose.py   the placement, what the controller starts from, and C of Saguaro sampling
    times.py    how long calls take on this machine, by their shape
    sample.py   short texts of the target, and what the draft thinks of them

The placement is a bet, on the user's own machine but on prompts of ours: it holds until the bundle
is closed. All else is the controller's to change while rounds run.
"""

from runtime.calibrate.choose import (
    Calibration,
    bundle_laws,
    calibrate,
    choose_fallback,
    choose_saguaro,
    pair_times,
    proposal_lengths,
)

__all__ = [
    "Calibration",
    "bundle_laws",
    "calibrate",
    "choose_fallback",
    "choose_saguaro",
    "pair_times",
    "proposal_lengths",
]
