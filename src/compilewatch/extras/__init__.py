"""What is built on the core, one folder each: the core imports none of it."""
