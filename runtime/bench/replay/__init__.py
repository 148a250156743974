"""``bench --replay``: the real scheduler, workers, cache and statistics over engines that take
prescribed times and meet outcomes by a law, beside what the cost model says of the same."""
