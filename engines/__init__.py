"""Floor 0: what a bundle is. Standard library and numpy only."""
