"""Models of the installed Transformers, read from its source files without importing it."""
