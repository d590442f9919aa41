"""The target `xla`: capture and execution by PyTorch/XLA, and fallbacks to eager mode."""
