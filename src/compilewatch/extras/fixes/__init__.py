"""Searches for changes that remove a model's graph breaks, and proves them in plain PyTorch."""
