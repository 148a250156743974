"""R1: where a sequence's rows lie in a cache, and who holds which slot."""
