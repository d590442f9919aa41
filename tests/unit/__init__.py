"""Tests in this process alone: no torch, no servers, and no processes but those of `process`."""
