"""ssd::CodedProduct: rows times a matrix that is stored as 8-bit codes.

    x       float32 [..., K]
    codes   int8    [K, N]           -127 .. 127
    scales  float32 [K / block, N]   of ``block`` inputs of a column; block is an attribute

    y       float32 [..., N]         x times codes * scales

In a graph it is a function, so any ONNX Runtime can run it: there it becomes a dequantisation and
a product, which ONNX Runtime fuses to its own 8-bit kernel. Where ours can be had (``plugins.ort``)
it takes the node instead. It reads the codes in the order they lie in memory, once, and multiplies
them by rows that it has rounded to 8 bits in the same blocks.

A row's result depends on that row alone: not on the rows beside it, their number or the threads.
"""
