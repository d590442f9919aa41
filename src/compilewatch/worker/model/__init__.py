"""Building a model: which class, of which size, with which overrides, on which tensors."""
