"""The team's folder and the program."""

from __future__ import annotations

from tests.team import program, team, variables

__all__ = ["program", "team", "variables"]
