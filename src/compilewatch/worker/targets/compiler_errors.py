"""What a compiler's exception about a model becomes, for targets behind or beside Dynamo."""

from __future__ import annotations

import re

import msgspec

from compilewatch.contract.failures import causes, error_code
from compilewatch.records import ErrorRecord
from compilewatch.worker.targets.dynamo.target import compiler_error

Codes = tuple[tuple[str, str], ...]
"""(code, pattern over the message): causes that only one target knows; the first match counts."""


def compiler_failure(error: BaseException, codes: Codes) -> ErrorRecord:
    """The record of a compiler's failure, coded by `codes` first and then as Dynamo's failures are.

    Raises the cause where memory ran out, whoever was asking for it: that is no answer.
    """
    inner = getattr(error, "inner_exception", None)
    for cause in (*causes(error), *(causes(inner) if inner is not None else ())):
        if error_code(cause) == "out_of_memory":
            raise cause
    record = compiler_error(error)
    found = next((code for code, pattern in codes if re.search(pattern, record.message)), None)
    return msgspec.structs.replace(record, code=found) if found else record
