"""Floor 2: runs bundles."""
