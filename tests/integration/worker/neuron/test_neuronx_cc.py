"""Driving neuronx-cc, through its double (tests/doubles/bin/neuronx-cc)."""

import json
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from compilewatch.errors import CompilerError
from compilewatch.neuron import neuronx_cc
from compilewatch.neuron.neuronx_cc import Compilation, Compiler
from compilewatch.records import NeuronDetail
from tests.doubles import BIN, has_ended, is_running, neuron_variables


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
    hlo = hlo_of(tmp_path)
    found = compiled(compiler, hlo)
    assert found.compiled, found.failure
    folder = tmp_path / "graph.trn1"
    assert found.neff_bytes == (folder / "graph.neff").stat().st_size
    assert found.neff.data_bytes == found.neff_bytes - 1024
    assert found.compiler_version == found.neff.build == "2.27.5334.0+f702b353"
    assert found.compile_seconds is not None
    assert not found.cached
    assert found.hlo_sha256 == neuronx_cc.sha256(hlo)
    assert msgspec.json.decode((folder / "neuron.json").read_bytes(), type=NeuronDetail) == found
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.startswith(f"compile {hlo} {' '.join(found.flags)} --output ")
    assert "--optlevel 2" in call


def test_its_memory_is_its_own_and_not_that_of_who_started_it(
    compiler: Compiler, tmp_path: Path
) -> None:
    held = b"x" * (300 * 2**20)
    found = compiled(compiler, hlo_of(tmp_path, "allocate 50"))
    assert len(held) == 300 * 2**20
    assert found.compiled
    assert 50 * 2**20 < found.compiler_peak_memory_bytes < 250 * 2**20


def test_flags_are_pinned_to_what_the_target_and_the_compiler_take(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--native-int64" not in compiler.flags("trn1")
    assert "--implicit-integer-downcast" in compiler.flags("trn1")
    assert "--native-int64" in compiler.flags("trn2")
    monkeypatch.setenv("NEURON_DOUBLE_OLD", "1")
    older = neuronx_cc.describe(compiler.path)
    expected = "--framework XLA --target trn2 --model-type generic --auto-cast none --optlevel 2"
    assert " ".join(older.flags("trn2")) == expected


def test_every_target_takes_its_flags_and_the_double_no_others(
    compiler: Compiler, tmp_path: Path
) -> None:
    for target in neuronx_cc.TARGETS:
        assert compiled(compiler, hlo_of(tmp_path), target).compiled
    command = [str(BIN / "neuronx-cc"), "compile", str(hlo_of(tmp_path)), "--framework", "XLA"]
    for wrong in (["--target", "trn9"], [], ["--target", "trn1", "--fast"]):
        done = subprocess.run([*command, *wrong], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.partition(" ")[0]) == (2, "usage:")


@pytest.mark.parametrize(
    ("behaviour", "kind", "code", "signal"),
    [
        ("error NCC_EUOC002 fft - Use another", "unsupported_operator", "NCC_EUOC002", None),
        ("abnormal 137", "host_memory", "F137", "SIGKILL"),
        ("abnormal 134", "crashed", "F134", "SIGABRT"),
        ("kill", "host_memory", None, "SIGKILL"),
        ("abort", "crashed", None, "SIGABRT"),
        ("segfault", "crashed", None, "SIGSEGV"),
        ("nothing", "unknown", None, None),
        ("cut", "unknown", None, None),
    ],
)  # fmt: skip
def test_each_way_to_fail_has_its_class(
    compiler: Compiler, tmp_path: Path, behaviour: str, kind: str, code: str, signal: str
) -> None:
    found = compiled(compiler, hlo_of(tmp_path, behaviour))
    assert not found.compiled
    assert (found.failure.kind, found.failure.code, found.failure.signal) == (kind, code, signal)
    assert neuronx_cc.described(found).startswith(kind.replace("_", " "))
    if behaviour.startswith("error"):
        assert (found.failure.message, found.failure.advice) == ("fft", "Use another")


def test_one_that_hangs_is_ended_with_all_it_started(compiler: Compiler, tmp_path: Path) -> None:
    hlo = hlo_of(tmp_path, "hang")
    folder = neuronx_cc.folder_of(hlo, "trn1")
    compilation = Compilation(compiler, hlo, "trn1", folder, own_session=True)
    mark = folder / "hanging"
    while not mark.is_file() or not mark.read_text():
        assert not compilation.done()
        time.sleep(0.01)
    helper = int(mark.read_text())
    assert is_running(helper)
    compilation.end("timeout", "no end after 1 s")
    found = compilation.detail()
    assert (found.failure.kind, found.failure.message) == ("timeout", "no end after 1 s")
    assert has_ended(helper)


def test_what_is_compiled_is_known_again_until_something_changes(
    compiler: Compiler, tmp_path: Path
) -> None:
    hlo = hlo_of(tmp_path)
    folder = neuronx_cc.folder_of(hlo, "trn1")
    assert neuronx_cc.earlier_result(folder, compiler, hlo, "trn1") is None
    found = compiled(compiler, hlo)
    assert neuronx_cc.earlier_result(folder, compiler, hlo, "trn1") == found
    assert neuronx_cc.earlier_result(folder, compiler, hlo, "trn2") is None
    newer = Compiler(path=compiler.path, version="3.0", known=compiler.known)
    assert neuronx_cc.earlier_result(folder, newer, hlo, "trn1") is None
    hlo.write_text("another HLO")
    assert neuronx_cc.earlier_result(folder, compiler, hlo, "trn1") is None
    found = compiled(compiler, hlo_of(tmp_path, "error NCC_EVRF001"))
    assert neuronx_cc.earlier_result(folder, compiler, hlo, "trn1") is None


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
