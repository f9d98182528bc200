"""Fixtures of all layers: seeds, a short directory for sockets, the small real model."""

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="replay this one seed")
    parser.addoption("--seeds", type=int, default=None, help="number of seeds to run")
    parser.addoption("--points", type=int, default=None, help="number of crashes to survive")


def pytest_configure(config: pytest.Config) -> None:
    # Machines stall for seconds: a deadline per example would find neighbours, not bugs.
    if importlib.util.find_spec("hypothesis") is not None:
        from hypothesis import settings

        settings.register_profile("kvd", deadline=None, print_blob=True)
        settings.register_profile("ci", parent=settings.get_profile("kvd"), derandomize=True)
        settings.load_profile("ci" if os.environ.get("CI") else "kvd")


@pytest.fixture(autouse=True, scope="session")
def _own_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep all tests away from the runtime and data directories of the person who runs them."""
    root = tmp_path_factory.mktemp("xdg")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(root / "run"))
        patch.setenv("XDG_STATE_HOME", str(root / "state"))
        patch.setenv("KVD_METRICS_LISTEN", "off")  # One port for all of them would be too few.
        yield


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """Yield a new directory with a short path: a Unix socket's path has at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="kvd-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def small_model():
    """Return (model, tokenizer) of the small real model, or skip where torch is missing."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from bench.model import load_model

    return load_model()
