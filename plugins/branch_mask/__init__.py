"""Attention masks on the device, for all rows of a call, from a few numbers each.

The masks of `runtime.kv.layout`: a slot's cache has `scratch_rows` for branches, depth d of
branch j at d * W + j (`num_branches` is W), then the text, position n at scratch_rows + n.
`reference` is the meaning in numpy and `kernel` the CUDA form; it is no node of a graph.

    mask  bool [B, 1, T, L]  token t of row b attends cache row l; all of it is written

Two entries:

    trunk   T consecutive tokens of the text: token t attends the text up to itself and no scratch.
              write_at  int64 [B]     the cache row of token 0 (`plugins.lookup` writes it)
    branch  step `depth` of T branches: branch t attends its own scratch rows of depths 0 .. depth
            and the first positions of the text.
              lengths   int64 [B, T]  how many positions; 0 for padding
"""
