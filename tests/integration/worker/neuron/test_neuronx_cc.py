"""Driving neuronx-cc, through its double (tests/doubles/bin/neuronx-cc)."""

import json
from pathlib import Path

import msgspec
import pytest

from compilewatch.errors import CompilerError
from compilewatch.neuron import neuronx_cc
from compilewatch.neuron.neuronx_cc import Compilation, Compiler
from compilewatch.records import NeuronDetail
from tests.doubles import BIN, neuron_variables


@pytest.fixture(autouse=True)
def doubles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in neuron_variables(tmp_path / "cache", sdk=False).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def compiler(doubles: None) -> Compiler:
    path = neuronx_cc.find()
    assert path == str(BIN / "neuronx-cc")
    return neuronx_cc.describe(path)


def hlo_of(folder: Path, behaviour: str = "ok") -> Path:
    path = folder / "graph.hlo_module.pb"
    path.write_text(f"an HLO\ndouble: {behaviour}\n")
    return path


def compiled(compiler: Compiler, hlo: Path, target: str = "trn1") -> NeuronDetail:
    folder = neuronx_cc.folder_of(hlo, target)
    return Compilation(compiler, hlo, target, folder, own_session=True).detail()


def test_a_neff_is_made_and_described(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "--optlevel 3")
    monkeypatch.setenv("NEURON_DOUBLE_CALLS", str(tmp_path / "calls"))
    hlo = hlo_of(tmp_path, "allocate 50")
    of_this_process = b"x" * (300 * 2**20)  # its memory does not count
    detail = compiled(compiler, hlo)
    assert detail.compiled, detail.failure
    folder = tmp_path / "graph.trn1"
    assert detail.neff_bytes == (folder / "graph.neff").stat().st_size
    assert detail.neff.data_bytes == detail.neff_bytes - 1024
    assert detail.compiler_version == detail.neff.build == "2.27.5334.0+f702b353"
    assert detail.compile_seconds is not None
    assert 50 * 2**20 < detail.compiler_peak_memory_bytes < 250 * 2**20 < len(of_this_process)
    assert not detail.cached
    assert detail.hlo_sha256 == neuronx_cc.sha256(hlo)
    assert msgspec.json.decode((folder / "neuron.json").read_bytes(), type=NeuronDetail) == detail
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.startswith(f"compile {hlo} {' '.join(detail.flags)} --output ")
    assert "--optlevel 2" in call


def test_flags_are_pinned_to_what_the_target_and_the_compiler_take(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for target in neuronx_cc.TARGETS:
        assert compiled(compiler, hlo_of(tmp_path), target).compiled
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
        ("cut", "unknown: a broken NEFF: "),
    ],
)
def test_each_way_to_fail_has_its_class(
    compiler: Compiler, tmp_path: Path, behaviour: str, described: str
) -> None:
    detail = compiled(compiler, hlo_of(tmp_path, behaviour))
    assert not detail.compiled
    assert neuronx_cc.described(detail).startswith(described)


def test_what_is_compiled_is_known_again_until_something_changes(
    compiler: Compiler, tmp_path: Path
) -> None:
    hlo = hlo_of(tmp_path)
    folder = neuronx_cc.folder_of(hlo, "trn1")

    def earlier(version: str = compiler.version, target: str = "trn1") -> NeuronDetail | None:
        other = Compiler(path=compiler.path, version=version, known=compiler.known)
        return neuronx_cc.earlier_result(folder, other, hlo, target)

    assert earlier() is None
    assert compiled(compiler, hlo) == earlier()
    assert earlier(target="trn2") is earlier("3.0") is None
    hlo.write_text("another HLO")
    assert earlier() is None
    compiled(compiler, hlo_of(tmp_path, "error NCC_EVRF001"))
    assert earlier() is None


def test_the_persistent_cache_is_looked_into(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hlo = hlo_of(tmp_path)
    first = compiled(compiler, hlo)
    entry = tmp_path / f"cache/neuronxcc-{compiler.version}/MODULE_123+abc"
    entry.mkdir(parents=True)
    (entry / "compile_flags.json").write_text(json.dumps(first.flags))
    (entry / "model.hlo_module.pb").write_bytes(hlo.read_bytes())
    (entry / "model.neff").write_bytes((tmp_path / "graph.trn1/graph.neff").read_bytes())
    assert not compiled(compiler, hlo).cached  # not done yet
    (entry / "model.done").touch()
    found = compiled(compiler, hlo)
    assert (found.cached, found.compiled, found.compile_seconds) == (True, True, None)
    assert found.neff == first.neff
    assert not compiled(compiler, hlo, "trn2").cached
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", "s3://bucket/cache")
    assert not compiled(compiler, hlo).cached


def test_a_compiler_that_does_not_start_is_no_fault_of_the_model(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NEURON_DOUBLE", "broken")
    with pytest.raises(CompilerError, match="No module named 'neuronxcc'"):
        neuronx_cc.describe(compiler.path)
    with pytest.raises(CompilerError, match="cannot be run: "):
        neuronx_cc.describe(str(tmp_path / "neuronx-cc"))


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


def test_cores_are_counted_where_there_is_a_driver_and_the_tool(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert neuronx_cc.core_count() == 0
    monkeypatch.setenv("NEURON_DOUBLE_CORES", "2")
    assert neuronx_cc.core_count() == 2
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(neuronx_cc, "TOOLS", tmp_path)
    assert neuronx_cc.core_count() == 0
    product = tmp_path / "product_name"
    assert neuronx_cc.instance_family(product) is None
    product.write_text("trn1n.32xlarge\n")
    assert neuronx_cc.instance_family(product) == "trn1n"
