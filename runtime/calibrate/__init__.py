"""What to decide when a bundle is loaded: measured step times and texts, put into the cost model.

    choose.py   mode, fallback, and C of Saguaro sampling
    times.py    how long each kind of call takes on this machine
    sample.py   short texts of the target, and what the draft thinks of them

Each is a bet placed once, at load, on the user's own machine but on prompts of ours. Measurements
are remembered (``runtime.memo``).
"""

from runtime.calibrate.choose import choose_fallback, choose_mode, choose_saguaro

__all__ = ["choose_fallback", "choose_mode", "choose_saguaro"]
