"""ssd::Verify: greedy verification of a drafted block inside the target's graph.

Of each row's drafted tokens it accepts the longest prefix that equals the target's own
choices, and gives the token that follows. `reference` is the meaning in numpy, `onnx` the
same as an ONNX function. Sampling with a temperature goes by logits and the numpy rules.
"""
