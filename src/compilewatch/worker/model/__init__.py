"""Building a model: its class, size, overrides and tensors."""
