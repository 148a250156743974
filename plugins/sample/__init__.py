"""Drafting: the draft's token at each place, and its guesses of the bonus token there.

**Greedy**, `ssd::Sample`: a node in the draft's graph, which gives the likeliest token as a target
id. `reference.sample` is its meaning, `onnx` the same as an ONNX function, `tensorrt` the layer,
`launch` what queues the layer's kernels.

**Sampling**, by the coupled or the ratio rule: no node. It runs between the draft's calls, as a
kernel on the logits that the draft leaves in device memory, for the reasons that `plugins.verify`
gives. `sampled` is the meaning in numpy, with Saguaro's reshaping of the draft's law; `kernel.cu`
has the kernels, `args` what a launch takes, `kernel` launches to try.
"""
