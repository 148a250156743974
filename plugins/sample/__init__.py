"""ssd::Sample: the draft's greedy choice, as a target id, inside the draft's graph.

`reference` is the meaning in numpy, `onnx` the same as an ONNX function. Sampling with a
temperature goes by logits and the numpy rules.
"""
