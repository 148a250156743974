"""Checkpoints in, bundle out: options, pair checks, build key, estimate, the build itself."""
