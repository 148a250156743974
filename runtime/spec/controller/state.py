"""What the controller is at, and what it takes to leave that for what.

state   rounds are    until                                         then
------  ------------  --------------------------------------------  -----------------------
REST    those of a    the pause is over, and the account covers a   TRIAL
        rest          trial with all that the draft has to read
TRIAL   speculative   TRIAL_ROUNDS of them were judged, or          ON if the model predicts a
                      MOST_TRIAL_ROUNDS launched                    gain now, else REST, for
                                                                    twice as long
                      a text joins whose reading is not covered     REST, without a pause
ON      speculative   the model predicts a loss                     REST
                      CHECK_EVERY of them were launched, or plain   CHECK
                      rounds are believed to have changed
                      what the draft has to read for the texts      ASIDE
                      is more than they can repay
ASIDE   those of a    the texts can repay it                        ON
        rest          as long as the longest pause                  REST
CHECK   plain         CHECK_ROUNDS of them were launched            ON, ASIDE or REST, by the
                                                                    same rules as in ON
"""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    """See the module's table."""

    REST = auto()
    TRIAL = auto()
    ON = auto()
    ASIDE = auto()
    CHECK = auto()
