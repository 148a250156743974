"""The policy behind ``--mode auto``: what the next round shall be.

policy.py    Controller: its states, trials and hysteresis
credit.py    what trials may cost, and the bound that follows
laws.py      how often drafts were right, for long and lately
pace.py      how long rounds take, as calibrated and as seen since
choices.py   the plans that there are
changes.py   what it says about its changes of mind
"""

from runtime.spec.controller.choices import Choices
from runtime.spec.controller.policy import Controller

__all__ = ["Choices", "Controller"]
