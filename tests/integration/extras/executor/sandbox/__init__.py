"""Hostile scripts in a real sandbox."""
