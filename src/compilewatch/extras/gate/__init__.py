"""The gate: a change that adds a graph break fails in its author's own repository."""
