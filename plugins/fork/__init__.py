"""Branches on the device: which outcomes to prepare for, and the inputs of their drafting.

A round of the draft is a root pass, one `fork`, and for each depth a `step` with a call of the
engine and `plugins.sample` behind it. `plugins.lookup` reads what they leave. It is the draft
worker's `prepare` without the host. `reference` is the meaning in numpy and `kernel` the CUDA form;
it is no node of a graph.

Arrays, B rows, T = K + 1, W branches, F candidates a place. Row i of the batch is slot i, of S.

    fork: behind the sampling of the root pass, which has fed the whole proposal x1 .. xm
      active          bool  [B]
      length          int64 [B]          n, tokens of the text
      limit           int64 [B]          tokens that prompt and text may have together
      generation      int64 [B]          the lease that holds the slot
      round           int64 [B]
      num_draft       int64 [B]          m
      fan_out         int32 [T, T]       in row m: how many of the candidates after 0, 1 .. m
                                         accepted tokens to prepare for; of more than W the first
      root_list       int64 [B, F + 1]   the root pass's candidates, likeliest first; -1: none
      candidates      int64 [B, T, F]    at place m the first F of ``root_list``; before it what
                                         `keep` left; -1: none
      fork_tokens     int64 [B, W]       the outcome's token that a branch starts with
      lengths         int64 [B, W]       tokens of text and proposal before it; 0 for padding
      cache_branches, cache_depth, cache_generation, cache_round, cache_accepted, cache_bonus
                                         as in `plugins.lookup`; ``depth`` is the cache's

    step: before the call of depth d, counted from 0
      lengths         int64 [B, W]
      chosen          int64 [B, W]       what each branch feeds: ``fork_tokens``, or the samples of
                                         the depth before
      step_tokens     int64 [B, W]       0 for an id that the draft has no embedding of
      step_positions  int64 [B, W]
      step_write_at   int64 [B]          d * ``stride``, the number of branches that the scratch
                                         rows were laid out for
      step_logit_rows int64 [B, W]       0 .. W - 1

    keep: with the commit of a hit
      winner          int32 [B]          the branch that won, -1 for none
      num_draft       int64 [B]          how many of its tokens are proposed
      branch_lists    int64 [K, S, W, F + 1]
                                         the candidates of each branch at each depth, likeliest
                                         first; the first is the token that was drafted
      candidates      int64 [B, T, F]    at the places before ``num_draft`` those of the winner but
                                         for the drafted token: it is known to be rejected there

A row that is not active, and one whose text this round must end, prepares for nothing. A candidate
-1 makes a branch that is padding and matches no outcome.
"""
