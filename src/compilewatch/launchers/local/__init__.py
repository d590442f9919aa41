"""Requests run on this machine: a server for each environment, a child for each request."""
