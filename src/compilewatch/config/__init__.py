"""Settings and paths: what a person configures."""
