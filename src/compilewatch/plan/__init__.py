"""Models and targets to requests: where each is evaluated, its key, what is expected of it."""
