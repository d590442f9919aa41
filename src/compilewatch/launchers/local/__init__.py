"""Runs requests on this machine: one server per environment, one child per request."""
