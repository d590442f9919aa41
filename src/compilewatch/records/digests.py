"""Digests of records and of configurations. Equal content has an equal digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

METADATA = frozenset(
    {
        "_commit_hash",
        "_name_or_path",
        "finetuning_task",
        "label2id",
        "name_or_path",
        "task_specific_params",
        "transformers_version",
    }
)
"""Keys of a config.json that describe its origin or the names of its outputs.

`dtype` is not one of them: sub-models made with `AutoModel.from_config` are built in that dtype
(transformers 5.23, `PreTrainedModel._from_config`), and some forward methods read it.
"""


def digest(value: Any) -> str:
    """Return the SHA-256, in hex, of the value as canonical JSON (sorted keys, no spaces)."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()


def canonical_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json without the keys that cannot change a result, at every level.

    The names of labels are dropped and their number is kept; the older spelling `torch_dtype`
    becomes `dtype`.
    """
    kept: dict[str, Any] = {}
    for key, value in config.items():
        if key in METADATA:
            continue
        if key == "id2label" and isinstance(value, Mapping):
            # In Transformers, id2label takes precedence over num_labels.
            kept["num_labels"] = len(value)
        elif key == "torch_dtype":
            kept.setdefault("dtype", value)
        elif key != "num_labels" or not isinstance(config.get("id2label"), Mapping):
            kept[key] = canonical_config(value) if isinstance(value, Mapping) else value
    return kept


def config_sha256(config: Mapping[str, Any]) -> str:
    """Return the digest of the canonical configuration, as in `ConfigBuild.config_sha256`."""
    return digest(canonical_config(config))
