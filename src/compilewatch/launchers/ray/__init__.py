"""Runs requests on a Ray cluster: a task for each, on whichever node has room for it.

Ray ends a process that is connected to a cluster, at once and with status 1, when it loses sight of
that cluster. So it is a process of its own that connects (`driver`), and `launcher`, which imports
no Ray, starts it, hands it requests, and replaces it when it is gone.
"""
