"""A target continues many prompts at once (generator.py)."""
