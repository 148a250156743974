"""Verification: how many of a row's drafted tokens stand, and the token that follows.

**Greedy**, `ssd::Verify`: a node in the target's graph, so that greedy decoding needs no logits
outside the engine. It accepts the longest prefix that equals the target's own choices.
`reference.verify` is its meaning, `onnx` the same as an ONNX function, `tensorrt` the layer,
`launch` what queues the layer's kernels.

**Sampling**, by the coupled or the ratio rule: no node. It runs between the engines, as a kernel on
the logits that the target leaves in device memory. So TensorRT, TensorRT-RTX and ONNX Runtime's
CUDA provider share one path, sampling parameters are device arrays and not engine inputs, and a
plan does not change with the rule. Engines on the CPU go by `runtime.sampling`.
`sampled` is the meaning in numpy, `kernel.cu` the kernels, `kernel` what a launch needs.
"""
