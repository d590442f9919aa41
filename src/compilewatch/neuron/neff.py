"""NEFF files, the output of neuronx-cc: a header of 1024 bytes, then a tarball.

Layout: Neuron SDK 2.32.0, `neuron-runtime/explore/work-with-neff-files.rst`. Little-endian; the
last 468 bytes of the header are reserved. A file has exactly `header_bytes` + `data_bytes`.
"""

from __future__ import annotations

import struct
from pathlib import Path

from compilewatch.records import NeffHeader

HEADER = struct.Struct("<5Q128sI32s16s256sI64sQI468s")


class NeffError(ValueError):
    """The file is not a complete NEFF; the message says why."""


def read_header(path: Path) -> NeffHeader | None:
    """Read a file's header; None for another layout. Raises NeffError for a truncated file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        raw = file.read(HEADER.size)
    if len(raw) < HEADER.size:
        raise NeffError(f"{size} bytes are less than the header of a NEFF")
    (package, header, data, major, minor, build, cores, digest, uuid, name, *rest) = HEADER.unpack(
        raw
    )
    requested, _per_node, features, logical, _reserved = rest
    if header != HEADER.size:
        return None
    if header + data > size:
        raise NeffError(f"its header says {header} + {data} bytes, the file has {size}")
    return NeffHeader(
        package_version=package,
        header_bytes=header,
        data_bytes=data,
        version=f"{major}.{minor}",
        build=_text(build),
        cores=cores,
        requested_cores=requested,
        hash=digest.hex(),
        uuid=uuid.hex(),
        name=_text(name),
        feature_bits=features,
        logical_core_size=logical,
    )


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="replace")
