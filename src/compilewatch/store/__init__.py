"""`outputs/`: the only reader and writer of stored runs, with an index that can be rebuilt."""

from compilewatch.files import safe_name
from compilewatch.store.artifacts import artifacts_path, condense, restore_artifacts
from compilewatch.store.index import StoredResult, is_reusable
from compilewatch.store.outputs import Delivered, Spool, Spooled, Store
from compilewatch.store.runs import RunFolder, RunWriter, StoredRun, freed_bytes, run_bytes

__all__ = [
    "Delivered",
    "RunFolder",
    "RunWriter",
    "Spool",
    "Spooled",
    "Store",
    "StoredResult",
    "StoredRun",
    "artifacts_path",
    "condense",
    "freed_bytes",
    "is_reusable",
    "restore_artifacts",
    "run_bytes",
    "safe_name",
]
