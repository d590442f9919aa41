"""The header of NEFFs."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.neuron.neuronx_cc import HEADER, NeffError, read_header

FIELDS = (
    *(2, 1024, 7, 2, 1),
    b"2.27.5334.0+f702b353",
    *(1, b"\x01" * 32, b"\x02" * 16, b"graph.neff", 1, b"\x01" * 64, 5, 2, b""),
)


def written(folder: Path, data: bytes) -> Path:
    path = folder / "graph.neff"
    path.write_bytes(data)
    return path


def test_its_fields_are_read(tmp_path: Path) -> None:
    header = read_header(written(tmp_path, HEADER.pack(*FIELDS) + b"payload"))
    assert HEADER.size == header.header_bytes == 1024
    assert (header.package_version, header.data_bytes, header.version) == (2, 7, "2.1")
    assert (header.build, header.name) == ("2.27.5334.0+f702b353", "graph.neff")
    assert (header.cores, header.requested_cores, header.logical_core_size) == (1, 1, 2)
    assert (header.hash, header.uuid, header.feature_bits) == ("01" * 32, "02" * 16, 5)


@pytest.mark.parametrize("size", [0, 100, 1024, 1030])
def test_one_that_was_cut_is_broken(tmp_path: Path, size: int) -> None:
    path = written(tmp_path, (HEADER.pack(*FIELDS) + b"payload")[:size])
    with pytest.raises(NeffError, match=f"{size}"):
        read_header(path)


def test_another_layout_has_no_header_that_we_know(tmp_path: Path) -> None:
    assert read_header(written(tmp_path, HEADER.pack(2, 2048, *FIELDS[2:]))) is None
