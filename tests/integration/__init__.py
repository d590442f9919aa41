"""Tests with real processes, servers, compilers and models."""
