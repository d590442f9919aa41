"""The parts of the executor that need no process."""
