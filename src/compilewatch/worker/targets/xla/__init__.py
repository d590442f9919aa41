"""The target `xla`: capture and run by PyTorch/XLA, and what falls back to eager."""
