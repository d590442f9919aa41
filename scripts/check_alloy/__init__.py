"""Checks the files of alloy/ where Alloy itself is not at hand.

A stand-in for `alloy validate` and `alloy fmt --test`, for the language and for the components used
here; each module says what it goes by. `python -m scripts.check_alloy` checks alloy/ as it is run:
config.alloy with each file of sinks/ in turn.
"""
