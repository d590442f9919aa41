"""Measuring real models: the part of a profile that needs torch.

Everything here runs in a subject, a child of a worker server with one built model. Statistics,
tables and pictures are made by the parent: a worker's environment has neither SciPy's statistics
nor matplotlib to offer for sure.
"""
