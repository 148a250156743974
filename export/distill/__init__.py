"""Drafts trained from what their target writes: ``python -m export distill`` (cli.py)."""
