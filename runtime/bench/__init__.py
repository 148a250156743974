"""Measurements of the runtime itself: ``python -m runtime bench KIND``."""
