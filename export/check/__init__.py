"""Does an engine compute what its checkpoint says? Compared with transformers, by position."""
