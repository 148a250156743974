"""R3: what speculation decides, as pure functions of numbers: no clock, no device, no model.

outcome.py     Outcome and Prepared: a verification's result, and what was drafted for it
cache.py       the speculation cache: outcome -> prepared tokens, for one round
fallback.py    Fallback and ProposalKind: where drafted tokens come from
ngram.py       lookup drafts
statistics.py  laws learnt from past rounds, by kind of proposal
fanout.py      which outcomes to prepare
replay.py      the rounds of a text, found afterwards
outcome_log.py outcomes of rounds in a file
cost/          predicted tokens a second of each mode and fallback
plan.py        RoundPlan, and who decides it: Policy
controller/    the policy of ``auto``
length.py      where a proposal ends, by the draft's confidence
saguaro.py     which C of Saguaro sampling pays
"""
