"""Floor 0: what a bundle is. Manifests, tensor specs, shape profiles, errors (standard library and numpy only)."""
