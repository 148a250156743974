"""Tokens drafted one after the other, between two verifications, without the host.

A root pass of two tokens, then a call of one token for each further draft, each with
`plugins.sample` behind it. It is the draft worker's `draft`. `reference` is the meaning in numpy
and `kernel` the CUDA form; it is no node of a graph.

The draft's cache may lack the text's last two tokens (the last draft was never fed, and all were
accepted), or the last one alone. So the root pass always feeds two: feeding a token again at its
place changes nothing.

Arrays, B rows, up to K drafted tokens, T = K + 1. Row i of the batch is slot i.

    the rows
      active            bool  [B]
      length            int64 [B]      n, tokens of the text
      limit             int64 [B]      tokens that prompt and text may have together
      last_tokens       int64 [B, 2]   the text's last two tokens (`plugins.lookup`)
    the proposal
      kind              int64 [B]      JIT, or NONE where there is no room
      num_draft         int64 [B]      ``num_wanted``, cut to the room that is left
      verify_tokens     int64 [B, T]   (t*, x1 .. xm), then zeros; `root` leaves t* alone
    root: the inputs of the first call
      root_tokens       int64 [B, 2]   0 for an id that the draft has no embedding of
      root_positions    int64 [B, 2]
      root_write_at     int64 [B]
      root_logit_rows   int64 [B, 1]   that of the text's last token
      sample_positions  int64 [B, 1]   its position, n - 1
    next: behind the sampling of draft number d, counted from 0
      sample            int64 [B]      the token
      step_tokens       int64 [B, 1]   the inputs of the call that follows; None behind the last
      step_positions    int64 [B, 1]
      step_write_at     int64 [B]
      step_logit_rows   int64 [B, 1]   0

A text of one token feeds a 0 behind it, which is overwritten before anybody attends it. So does a
row that is not active, at position n - 1 and on, the first that no cache row holds.

With ``num_wanted`` = 0 `root` is the root pass of a round that prepares ahead, after one that
drafted in this way.
"""
