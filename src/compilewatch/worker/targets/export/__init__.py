"""The target `export`: `torch.export`, non-strict, strict and draft."""
