"""Folders and workers that tests of all launchers use."""

from tests.integration.launchers.conftest import bare_launcher, bare_python, scratch

__all__ = ["bare_launcher", "bare_python", "scratch"]
