"""ssd::GroupedAttention: query heads that share keys attend cached keys and values.

    queries  float32 [B, H, T, D]
    keys     float32 [B, G, L, D]   H / G query heads share each; rows of a cache
    values   float32 [B, G, L, D]
    bias     float32 [B, 1, H / G * T, L]   0 where a token sees a row, float32's least where not;
                                            T rows, once a head of a group

    context  float32 [B, T, H * D]   softmax(scale * queries x keys + bias) x values

In a graph it is a function of standard operators; where our kernel can be had (``plugins.ort``), it
takes the node instead. A row's result depends on that row, and on the keys and values it sees,
alone: not on the rows beside it, their number, the length of the cache, the threads, or any finite
number that lies where it sees nothing. A row that sees nothing at all is zeros.
"""
