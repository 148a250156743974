"""The commit of a hit on the device: the winning branch's cache rows move from scratch to trunk.

All caches of an engine in one launch, keys and values of every layer. `reference` is the meaning
in numpy and `kernel` the CUDA form; it is no node of a graph.

Arrays, B rows, row i of the batch is slot i. Each cache is [B, Hkv, S, D] of any element type.

    caches     [N] caches, written in place: on the device a table of addresses
    winner     int32 [B]   the branch that won, -1 for none (`plugins.lookup`)
    num_draft  int64 [B]   how many rows it has, one for each depth
    commit_at  int64 [B]   the cache row that the first of them goes to

Row d of branch j lies at scratch row d * W + j (`num_branches` is W). Scratch comes before the
trunk, so what is read and what is written never overlap. A row without a winner stays as it is.
"""
