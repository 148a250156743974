"""Streams, events, buffers and graphs. `api.py` has the protocols and what every call means."""
