"""R1: where a sequence's rows lie in a cache, who holds which slot, and what free slots keep."""
