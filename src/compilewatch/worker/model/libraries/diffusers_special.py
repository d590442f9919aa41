"""Inputs of single classes of diffusers that no rule derives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SPECIAL: dict[str, Callable[[Any], dict[str, Any]]] = {}
"""Class -> the arguments that differ from the rules; None leaves one out."""
