"""The datasets that a plan may recommend, and what is used where there is no network."""

from __future__ import annotations

DATASETS: dict[str, str] = {
    "cifar10": "synthetic_small",
    "cifar100": "synthetic_small",
    "mnist": "synthetic_small",
    "fashion_mnist": "synthetic_small",
    "imdb": "synthetic_medium",
    "wikitext2": "synthetic_medium",
    "synthetic_small": "synthetic_small",
    "synthetic_medium": "synthetic_medium",
    "synthetic_tabular": "synthetic_tabular",
}
"""Dataset -> the synthetic one that replaces it offline. Sandboxed code never has a network."""

DEFAULT = "synthetic_small"


def offline(name: str) -> tuple[str, str]:
    """The dataset that is used in place of a recommended one, and a sentence about it."""
    used = DATASETS.get(name, DEFAULT)
    if name not in DATASETS:
        return used, f"the plan names no known dataset, so {used} is used"
    if used == name:
        return used, f"{used}, as recommended"
    return used, f"{used} in place of {name}: sandboxed code has no network"
