"""Predicted tokens a second of each mode, from step times and laws of acceptance. Pure: no clock.

times.py       seconds of an engine's calls by shape
laws.py        accepted counts and ranks of bonus tokens, by kind of proposal, for any K and W
shares.py      how often a row hits, and how often it waits
chain.py       how a stream's tokens arrive in each mode
prediction.py  tokens a second, latencies
search.py      the best setting
economics.py   break-even acceptance, devices that earn their keep
"""

from runtime.spec.cost.laws import KindLaw, Laws, laws_of_acceptance, laws_of_log
from runtime.spec.cost.prediction import Prediction, predict
from runtime.spec.cost.times import ByTokens, CallTimes, Grid, PairTimes

__all__ = [
    "ByTokens",
    "CallTimes",
    "Grid",
    "KindLaw",
    "Laws",
    "PairTimes",
    "Prediction",
    "laws_of_acceptance",
    "laws_of_log",
    "predict",
]
