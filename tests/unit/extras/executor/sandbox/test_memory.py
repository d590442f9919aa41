"""What the sandbox counts as its own memory and files."""

from __future__ import annotations

import os

from compilewatch.extras.executor.sandbox import supervisor


def test_a_folder_of_this_machine_is_no_folder_of_a_sandbox() -> None:
    """As /proc shows it until bubblewrap has mounted the sandbox's own."""
    assert list(supervisor.folder_use(os.getpid())) == []
