"""The policy behind ``--mode auto``: what the next round shall be.

policy.py     Controller: its states, trials and hysteresis
credit.py     what trials may cost, and the bound that follows
account.py    the same in use: rounds in flight, what reported ones took
forecasts.py  what plans are expected to yield and may lose
laws.py       how often drafts were right, for long and lately
copies.py     what lookups would yield, judged in every round
pace.py       how long rounds take, as calibrated and as seen since
resting.py    rounds without the draft engine
reading.py    what it costs that a draft reads a text first
learning.py   what reports teach all of these
choices.py    the plans that there are
changes.py    what it says about its changes of mind
"""

from runtime.spec.controller.choices import Choices
from runtime.spec.controller.policy import Controller

__all__ = ["Choices", "Controller"]
