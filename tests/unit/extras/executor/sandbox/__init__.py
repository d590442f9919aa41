"""The parts of the sandbox that need no process."""
