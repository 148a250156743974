"""Latency of an engine's calls, and inputs that make sense to it, for us and for polygraphy."""
