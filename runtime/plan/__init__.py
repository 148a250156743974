"""Whether a pair of models would pay, before it is bought or built: ``python -m runtime plan``.

planner.py    a question put to the cost model, and the answer
verdict.py    the answer in sentences
check.py      the cost model against a log of rounds
bundle.py     step times and laws of a bundle on this machine
picture.py    the answer as a plot
"""
