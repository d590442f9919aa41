"""Converting a compiler's exception about a model, for targets that use Dynamo or another one."""

from __future__ import annotations

import re

import msgspec

from compilewatch.contract.failures import causes, error_code
from compilewatch.records import ErrorRecord
from compilewatch.worker.targets.dynamo.failures import compiler_error

Codes = tuple[tuple[str, str], ...]
"""(code, pattern of the message): causes specific to a target; the first match counts."""


def compiler_failure(error: BaseException, codes: Codes) -> ErrorRecord:
    """Return the record of a failure, with a code from `codes`, or else from Dynamo's codes.

    Raises the cause if memory ran out, because that says nothing about the model.
    """
    inner = getattr(error, "inner_exception", None)
    for cause in (*causes(error), *(causes(inner) if inner is not None else ())):
        if error_code(cause) == "out_of_memory":
            raise cause
    record = compiler_error(error)
    own_code = next((code for code, pattern in codes if re.search(pattern, record.message)), None)
    return msgspec.structs.replace(record, code=own_code) if own_code else record
