"""Small values of the host in device memory, without staging memory and without waiting.

The bytes travel inside the launch, so the host may forget them at once, and a stream puts them
where its own order says. Used between rounds: a text joins or leaves, a chunk of a prompt, the
statistics have changed. `reference` is the meaning in numpy and `kernel` the CUDA form; it is no
node of a graph.

    base      the memory; None where ``offsets`` are addresses
    offsets   int64 [N]  where each segment goes, in bytes from ``base``
    ends      int32 [N]  where each segment ends in ``bytes``; it starts where the last one ended
    bytes     uint8 [M]

At most MAX_SEGMENTS segments and MAX_BYTES bytes a launch. Segments must not overlap.
"""
