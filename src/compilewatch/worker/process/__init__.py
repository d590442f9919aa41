"""The processes of a worker: the server, its children, and programs that answer one question."""
