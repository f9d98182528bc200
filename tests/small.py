"""A file system of a few MiB, to be filled."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_file_system(directory: Path, size_bytes: int) -> Iterator[Path]:
    """Have a tmpfs of this size in a directory, or skip the test."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a tmpfs")
    size = f"size={size_bytes},mode=700"
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", directory], stderr=-3)
    if mount.returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield directory
    subprocess.run(["umount", "--lazy", directory], check=True)
