"""diffusers: model classes from their default or a repository's configuration."""
