"""The generated code in kvd/v1 is what the .proto files say, made by the pinned compiler."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _generator():
    path = ROOT / "proto" / "generate.py"
    spec = importlib.util.spec_from_file_location("proto_generate", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_code_is_current(tmp_path):
    generator = _generator()
    try:
        generator.install_compiler()
    except RuntimeError as error:
        pytest.skip(f"the pinned compiler cannot be installed here: {error}")
    made = generator.generate(tmp_path)
    assert {path.suffix for path in made} == {".py", ".pyi"}
    for path in made:
        kept = ROOT / path.relative_to(tmp_path)
        assert kept.exists(), f"{kept.name} is missing: run make proto"
        assert kept.read_bytes() == path.read_bytes(), f"{kept.name} is stale: run make proto"


def test_generated_code_loads_on_protobuf_6_33():
    """The stamp in the generated code bounds what an engine's environment must have."""
    text = (ROOT / "kvd" / "v1" / "kvd_pb2.py").read_text()
    stamp = text.split("ValidateProtobufRuntimeVersion(")[1].split(")")[0].split(",")
    assert tuple(int(number) for number in stamp[1:4]) <= (6, 33, 0)
