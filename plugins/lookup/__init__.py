"""The speculation cache on the device: from an outcome to the next round's calls, without the host.

It runs between a verification and the next. For each row it records what the outcome emits, looks
the outcome up among the branches prepared ahead of time, and fills in the inputs of the next
verification (target) and of the next root pass (draft). `reference` is the meaning in numpy and
`kernel` the CUDA form; it is no node of a graph.

Arrays, B rows, W branches of up to K tokens. Row i of the batch is slot i.

    the outcome, as ssd::Verify gives it
      accepted          int64 [B]        k
      bonus             int64 [B]        t*
    the speculation cache
      cache_branches    int32 [B]        branches prepared, 0..W; becomes 0, an entry serves once
      cache_depth       int32 [B]        tokens drafted for each of them, 0..K
      cache_generation  int64 [B]        the lease that they were prepared for
      cache_round       int64 [B]        the round that they were prepared in
      cache_accepted    int32 [B, W]     the outcome that a branch is for: k
      cache_bonus       int64 [B, W]     and t*; of two branches for one outcome the later counts
      cache_tokens      int64 [B, W, K]  what was drafted after it
    the rows
      generation        int64 [B]        the lease that holds the slot
      round             int64 [B]        goes up by one
      active            bool  [B]        becomes False where the text has reached max_len
      length            int64 [B]        tokens of the text, the last of which no cache holds yet
    the next verification: T = K + 1 tokens a row, (t*, x1 .. xK)
      verify_tokens     int64 [B, T]     holds this round's (x0, x1 .. xK) before
      verify_positions  int64 [B, T]
      verify_write_at   int64 [B]        first cache row
      num_draft         int64 [B]        0 after a miss
    the next root pass: the one token that the draft's cache lacks, xK after a hit, else t*
      root_tokens       int64 [B, 1]     0 for an id that the draft has no embedding of
      root_positions    int64 [B, 1]
      root_write_at     int64 [B]
    the commit of a hit
      winner            int32 [B]        the branch; -1 after a miss
      commit_at         int64 [B]        the cache row that its first row goes to
    for the host
      num_emitted       int32 [B]        k + 1; 0 for a dummy
      emitted           int64 [B, T]     the text's new tokens, then zeros

This round's root pass has fed the whole proposal, so the draft's cache holds the text up to the
bonus token. A row that is not active is a dummy: a text of one token 0 that proposes nothing.
"""
