"""Evaluation of a model in the process that called `compilewatch.check`, which is left as found."""
