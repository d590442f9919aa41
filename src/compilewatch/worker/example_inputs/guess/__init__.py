"""Example inputs for a module that is not of Transformers: guessed, and tried before believed.

What the model's source, layers, attributes and documentation say about each argument gives the
first calls (`arguments.SOURCES`); the message of a call that fails gives the next
(`corrections.CORRECTIONS`). Each call is tried in a fork of this process, so that the model remains
one that nothing has called. If none passes, the guess was wrong, which is no error of the model.
"""

from __future__ import annotations

from compilewatch.worker.example_inputs.guess.search import guessed_inputs

__all__ = ["guessed_inputs"]
