"""Models of the installed Transformers, read out of its files without importing it."""
