"""KV of another routine is other KV: what this process computes with is part of the keyspace."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from kvd.engines.hf import HfEngine  # noqa: E402
from kvd.engines.hf_routine import trial  # noqa: E402
from tests.unit.speculate_model import random_llama, random_text  # noqa: E402

PROMPT = random_text(130)


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextlib.contextmanager
def precision(word: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(word)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


SWITCHES = {
    "math": lambda: sdpa_kernel(SDPBackend.MATH),
    "flash": lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION),
    "mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
    "denormals": flushed,
    "precision": lambda: precision("medium"),
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_what_is_computed_another_way_goes_under_another_keyspace(switch: str) -> None:
    engine = HfEngine(random_llama(), revision="1")
    before = engine.prefill(PROMPT).keyspace
    assert engine.prefill(PROMPT).keyspace == before
    with SWITCHES[switch]():
        inside = engine.prefill(PROMPT).keyspace
        assert HfEngine(random_llama(), revision="1").keyspace == inside
    assert inside is not None and inside != before


@pytest.mark.parametrize("package", (torch, transformers), ids=("torch", "transformers"))
def test_an_upgrade_is_another_routine(monkeypatch, package: Any) -> None:
    before = HfEngine(random_llama(), revision="1").keyspace
    assert HfEngine(random_llama(), revision="1").keyspace == before
    monkeypatch.setattr(package, "__version__", "99.0")
    assert HfEngine(random_llama(), revision="1").keyspace != before


def test_a_trial_comes_out_the_same_while_nothing_changes() -> None:
    first = trial()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert trial() == first
    assert tried({}) == first


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="this CPU has one set of kernels"
)
def test_a_trial_finds_other_kernels() -> None:
    assert tried({"ATEN_CPU_CAPABILITY": "default"}) != tried({})


def tried(variables: dict[str, str]) -> str:
    """Return what a trial gives in a process of its own."""
    code = "from kvd.engines.hf_routine import trial; print(trial())"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | variables,
        capture_output=True,
        check=True,
        text=True,
    )
    return result.stdout.strip()
