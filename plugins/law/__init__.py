"""From an engine's logits to the law that a token is drawn from.

`reference` is the meaning in numpy, by plain sorting. Kernels include a form that never sorts: one
pass over a row finds between which two logits its cut lies (`bracket.cuh`), and whoever makes the
second pass settles the few ids that lie there (`cut.cuh`). `row.cuh` reads adjusted logits,
`weight.cuh` has their weights as integers. `kernel` says in Python what a launch needs.
"""
