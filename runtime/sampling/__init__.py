"""Sampling: parameters, counter-based noise and the two verification rules, in numpy.

    params.py    SamplingParams, the one place where a request's values are checked
    noise.py     the noise of a token: a pure function of (seed, position, id)
    logits.py    bias, bans, top-k, top-p, min-p, and the law they leave
    text_law.py  penalties, forbidden words and grammar: what a text's own tokens do to its law
    logprobs.py  how likely an emitted token was, by the target's own law
    proposal.py  what a drafter hands over, and what a rule answers
    coupled.py   the default rule: tokens depend on the target and the seed alone
    ratio.py     the classical rejection rule with residual, and Saguaro sampling
    api.py       Rule, and rule("coupled" | "ratio")

Throughout, `p` is the target's law and `q` the draft's, positions count the tokens of a
sequence from 0 (prompt included), and token ids are target ids unless said otherwise.
"""
