"""The fixtures of the unit tests, for those that ask a server or a process."""

from tests.unit.sources.conftest import installed, miniature, scans

__all__ = ["installed", "miniature", "scans"]
