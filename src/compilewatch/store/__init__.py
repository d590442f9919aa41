"""`outputs/`: the only reader and writer of stored runs, with an index that can be rebuilt."""

from compilewatch.files import safe_name
from compilewatch.store.artifacts import condense, restore_artifacts
from compilewatch.store.index import is_reusable
from compilewatch.store.outputs import Spool, Spooled, Store
from compilewatch.store.runs import RunFolder, RunWriter, StoredRun, freed_bytes, run_bytes

__all__ = [
    "RunFolder",
    "RunWriter",
    "Spool",
    "Spooled",
    "Store",
    "StoredRun",
    "condense",
    "freed_bytes",
    "is_reusable",
    "restore_artifacts",
    "run_bytes",
    "safe_name",
]
