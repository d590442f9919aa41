"""Minimal reproducers: one small file of plain PyTorch for a graph break of a model."""
