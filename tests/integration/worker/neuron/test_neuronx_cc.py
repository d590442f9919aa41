"""Driving neuronx-cc, through its double (tests/doubles/bin/neuronx-cc)."""

import os
from pathlib import Path

import pytest

from compilewatch.errors import CompilerError
from compilewatch.neuron import neuronx_cc
from compilewatch.neuron.neuronx_cc import Compiler
from compilewatch.records import NeuronDetail
from tests.doubles import BIN


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    monkeypatch.setenv("PATH", str(BIN), prepend=os.pathsep)
    path = neuronx_cc.find()
    assert path == str(BIN / "neuronx-cc")
    return neuronx_cc.describe(path)


def compiled(
    compiler: Compiler, folder: Path, behaviour: str = "ok", target: str = "trn1"
) -> NeuronDetail:
    hlo = folder / "graph.hlo_module.pb"
    hlo.write_text(f"an HLO\ndouble: {behaviour}\n")
    place = neuronx_cc.folder_of(hlo, target)
    return neuronx_cc.compile_module(compiler, hlo, place, target=target, seconds=2)


def test_a_neff_is_made_and_described(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "--optlevel 3")
    monkeypatch.setenv("NEURON_DOUBLE_CALLS", str(tmp_path / "calls"))
    of_this_process = b"x" * (300 * 2**20)  # its memory does not count
    detail = compiled(compiler, tmp_path, "allocate 50")
    hlo, folder = tmp_path / "graph.hlo_module.pb", tmp_path / "graph.trn1"
    assert detail.compiled, detail.failure
    assert detail.neff_bytes == (folder / "graph.neff").stat().st_size
    assert detail.compiler_version == "2.27.5334.0+f702b353"
    assert (detail.compile_seconds or 0) >= 0.5
    peak = detail.compiler_peak_memory_bytes or 0
    assert 50 * 2**20 < peak < 250 * 2**20 < len(of_this_process)
    assert detail.hlo_sha256 == neuronx_cc.sha256(hlo)
    assert (folder / "console.txt").read_text() == "Compiler status PASS\n"
    flags = " ".join(detail.flags)
    assert (tmp_path / "calls").read_text().startswith(f"compile {hlo} {flags} --output ")
    assert "--optlevel 2" in flags


def test_flags_are_pinned_to_what_the_target_and_the_compiler_take(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for target in neuronx_cc.TARGETS:
        assert compiled(compiler, tmp_path, target=target).compiled
        assert ("--native-int64" in compiler.flags(target)) is (target == "trn2")
    assert "--implicit-integer-downcast" in compiler.flags("trn1")
    monkeypatch.setenv("NEURON_DOUBLE_OLD", "1")
    older = neuronx_cc.describe(compiler.path)
    expected = "--framework XLA --target trn2 --model-type generic --auto-cast none --optlevel 2"
    assert " ".join(older.flags("trn2")) == expected


@pytest.mark.parametrize(
    ("behaviour", "described"),
    [
        ("error NCC_EUOC002 fft - Use another", "unsupported operator: NCC_EUOC002: fft"),
        ("abnormal 134", "crashed: F134: "),
        ("kill", "host memory: SIGKILL"),
        ("nothing", "unknown: exit status 0 and no NEFF"),
        ("hang", "timeout: not finished after 2 s"),
    ],
)
def test_each_way_to_fail_has_its_class(
    compiler: Compiler, tmp_path: Path, behaviour: str, described: str
) -> None:
    detail = compiled(compiler, tmp_path, behaviour)
    assert not detail.compiled
    assert neuronx_cc.described(detail).startswith(described)


def test_a_compiler_that_does_not_start_is_no_fault_of_the_model(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NEURON_DOUBLE", "broken")
    with pytest.raises(CompilerError, match="No module named 'neuronxcc'"):
        neuronx_cc.describe(compiler.path)
    gone = Compiler(path=str(tmp_path / "neuronx-cc"), version="2", known=frozenset())
    for start in (lambda: neuronx_cc.describe(gone.path), lambda: compiled(gone, tmp_path)):
        with pytest.raises(CompilerError, match="cannot be run: No such file"):
            start()


def test_it_is_found_beside_python_first(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert neuronx_cc.find() == compiler.path
    (tmp_path / "neuronx-cc").symlink_to(compiler.path)
    assert neuronx_cc.find() == str(tmp_path / "neuronx-cc")
    (tmp_path / "neuronx-cc").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert neuronx_cc.find() is None


def test_cores_are_counted_and_the_family_is_that_of_the_machine(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert neuronx_cc.core_count() == 0
    monkeypatch.setenv("NEURON_DOUBLE_CORES", "2")
    assert neuronx_cc.core_count() == 2
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(neuronx_cc, "TOOLS", tmp_path)
    assert neuronx_cc.core_count() == 0
    monkeypatch.setattr(neuronx_cc, "PRODUCT", tmp_path / "product_name")
    families = []
    for product in ("trn1n.32xlarge\n", "m5.large\n"):
        (tmp_path / "product_name").write_text(product)
        families.append(neuronx_cc.family_of())
    (tmp_path / "product_name").unlink()
    assert [*families, neuronx_cc.family_of(), neuronx_cc.family_of("trn2")] == [
        *("trn1n", "trn1", "trn1", "trn2")
    ]
