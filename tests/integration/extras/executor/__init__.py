"""A real executor service, and its client."""
