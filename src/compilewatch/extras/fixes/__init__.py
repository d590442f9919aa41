"""Searches for changes that remove a model's graph breaks, and verifies them in plain PyTorch."""
