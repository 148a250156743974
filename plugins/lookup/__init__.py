"""The speculation cache on the device: from an outcome to the next round's calls, without the host.

It runs between a verification and the next. For each row it records what the outcome emits, looks
the outcome up among the branches prepared ahead of time, and fills in the inputs of the next
verification (target) and of the next root pass (draft). It is the draft worker's `adopt` with zero
drafts after a miss. `reference` is the meaning in numpy and `kernel` the CUDA form; it is no node
of a graph.

Arrays, B rows, W branches of up to K tokens, F candidates. Row i of the batch is slot i, of S.

    the outcome, as a verification gives it
      accepted          int64 [B]        k
      bonus             int64 [B]        t*
      status            int32 [B]        as the verification kernels write it; None: 0 everywhere
      candidates        int64 [B, T, F]  likely bonus tokens after 0, 1 .. m accepted ones
                                         (`plugins.fork`), for the rank of t*; None: no ranks
    the speculation cache; cache_branches None: there is none
      cache_branches    int32 [B]        branches prepared, 0..W; becomes 0, an entry serves once
      cache_depth       int32 [B]        tokens drafted for each of them, 0..K
      cache_generation  int64 [B]        the lease that they were prepared for
      cache_round       int64 [B]        the round that they were prepared in
      cache_accepted    int32 [B, W]     the outcome that a branch is for: k
      cache_bonus       int64 [B, W]     and t*; of two branches for one outcome the later counts
      cache_tokens      int64 [K, S, W]  what was drafted after it: a slab for each depth
    the rows
      generation        int64 [B]        the lease that holds the slot
      limit             int64 [B]        tokens that prompt and text may have together
      round             int64 [B]        goes up by one
      active            bool  [B]        becomes False where the text has reached its limit
      length            int64 [B]        tokens of the text, the last of which no cache holds yet
      kind              int64 [B]        what the row proposes: HIT, prepared tokens, or NONE
      last_tokens       int64 [B, 2]     the text's last two tokens, for `plugins.chain`
    the next verification: T = K + 1 tokens a row, (t*, x1 .. xm)
      verify_tokens     int64 [B, T]     holds this round's (x0, x1 .. xm) before
      verify_positions  int64 [B, T]
      verify_write_at   int64 [B]        first cache row
      num_draft         int64 [B]        m: 0 after a miss, else cut to the room that is left
    the next root pass: the one token that the draft's cache lacks, xm after a hit, else t*
      root_tokens       int64 [B, 1]     0 for an id that the draft has no embedding of
      root_positions    int64 [B, 1]
      root_write_at     int64 [B]
    the commit of a hit
      winner            int32 [B]        the branch; -1 where there are no tokens to commit
      commit_at         int64 [B]        the cache row that its first row goes to
    for the host
      outcome           int64 [B, 7 + T] lease, kind, m and k of the round that was verified; the
                                         text's k + 1 new tokens, then zeros, T in all; whether it
                                         had been prepared (-1: nothing had), the rank of t* among
                                         the candidates (-1: none), and the status

A text of n tokens with m drafted may become n + m + 1 tokens long, so m <= limit - n - 1, and no
text grows beyond its limit. Kinds and the columns of `outcome`, but for the last three, are those
of the runtime's mailbox.

This round's root pass has fed the whole proposal, so the draft's cache holds the text up to the
bonus token. A row that is not active is a dummy, and its kind in `outcome` is SKIP. It proposes
nothing and feeds a token 0 at position `length` - 1, the first that no cache row holds: the host
makes that 0 for a slot without a text, and the tokens fed so far for one whose prompt is being fed.
A text that reaches its limit becomes a dummy of length 1.

The target's device advances its texts by the same kernel where no draft answers. Then
``root_tokens`` is None, and so may be what is the draft's: ``last_tokens``, the rest of the root
pass and of the commit, the cache and ``candidates``.

Stop ids are the host's, one round later: it finds them in `outcome` and clears `active` before a
later lookup. What that round drafts and emits behind the end of the text, the host drops.
"""
