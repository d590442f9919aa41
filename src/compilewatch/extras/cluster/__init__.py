"""Runs requests on a Ray cluster: one task for each, on any node with free resources.

Ray ends a process that is connected to a cluster, immediately and with status 1, when the cluster
becomes unreachable. Therefore a separate process connects to it (`driver`); `launcher`, which does
not import Ray, starts the driver, sends it requests, and replaces it when it ends.
"""
