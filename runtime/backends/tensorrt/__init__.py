"""Compiled engines on a GPU: sessions for TensorRT and TensorRT-RTX, whose module is injected."""
