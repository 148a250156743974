"""Other engines on the same prompts: what a bundle is faster than, or not."""
