"""Digests of records and of configurations: equal content has an equal digest."""

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
"""Keys of a config.json that say where it comes from or what its outputs are called.

`dtype` is not among them: sub-models made with `AutoModel.from_config` are built in it
(transformers 5.23, `PreTrainedModel._from_config`), and some forwards read it.
"""


def digest(value: Any) -> str:
    """SHA-256, in hex, of canonical JSON: sorted keys, no spaces."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()


def canonical_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json without what cannot change an answer, sub-configurations included.

    Names of labels go, their number stays; the older spelling `torch_dtype` becomes `dtype`.
    """
    kept: dict[str, Any] = {}
    for key, value in config.items():
        if key in METADATA:
            continue
        if key == "id2label" and isinstance(value, Mapping):
            # Transformers lets id2label win over num_labels.
            kept["num_labels"] = len(value)
        elif key == "torch_dtype":
            kept.setdefault("dtype", value)
        elif key != "num_labels" or not isinstance(config.get("id2label"), Mapping):
            kept[key] = canonical_config(value) if isinstance(value, Mapping) else value
    return kept


def config_sha256(config: Mapping[str, Any]) -> str:
    """What `ConfigBuild.config_sha256` holds: the digest of the canonical configuration."""
    return digest(canonical_config(config))
