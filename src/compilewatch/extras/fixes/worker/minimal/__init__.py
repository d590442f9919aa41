"""Cuts a graph break out of a model, in the process that has built it."""
