"""A proposal's arrival at the target: the inputs of the next verification, without the host.

The draft's message was written for the rows as they were then; since, texts may have left their
slots to others. A row takes what was proposed to its own lease, and nothing otherwise. `reference`
is the meaning in numpy and `kernel` the CUDA form; it is no node of a graph.

Arrays, B rows, up to K drafted tokens each, a call of T <= K + 1 tokens. Row i is slot i.

    the message: element b of a field lies at b * ``stride``, and row b of the tokens at
    b * ``tokens_stride``, so it may be one array a field or one row of numbers a text
      sent_generation  int64          the lease that it was written for
      sent_kind        int64
      sent_num_draft   int64          m
      sent_tokens      int64          x1 .. xm
    the rows
      generation       int64 [B]      the lease that holds the slot
      active           bool  [B]      False: a dummy
      limit            int64 [B]      tokens that prompt and text may have together
      length           int64 [B]      tokens of the text, the last of which no cache holds yet
      verify_tokens    int64 [B, K+1] (t*, ...) before, (t*, x1 .. xm, 0 ..) after
      num_draft        int64 [B]      m after; cut to T - 1 and to the room, limit - length - 1
      kind             int64 [B]      as sent, NONE where nothing was
    the call
      tokens           int64 [B, T]   the first T of ``verify_tokens``
      positions        int64 [B, T]   length - 1 and on
      write_at         int64 [B]      ``scratch_rows`` + length - 1
      call_num_draft   int64 [B]      m
      logit_rows       int64 [B, T]   0 .. T - 1

Without a message (``sent_generation`` None) every row proposes nothing.
"""
