"""Settings and paths that users configure."""
