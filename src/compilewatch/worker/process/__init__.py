"""The processes of a worker: the server, its children, and programs with one result."""
