"""The noise that tokens are drawn with: one specification, in numpy and in CUDA.

`reference` is the specification with its numpy form, `noise.cuh` the form that kernels include,
`kernel.cu` an entry that writes it out so that the two can be compared.
"""
