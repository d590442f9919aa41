"""The team's folder and the program."""

from tests.team import program, team, variables

__all__ = ["program", "team", "variables"]
