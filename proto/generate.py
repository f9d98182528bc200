"""Generate kvd/v1 from proto/kvd/v1/*.proto with one pinned compiler: `python proto/generate.py`.

The compiler lives in build/protoc, apart from the environment: grpcio-tools 1.76 wants protobuf
below 7, while its output (stamped protobuf 6.31.1, grpcio 1.76.0) loads on both protobuf 6.33,
which engines pin, and 7. A newer compiler would raise what every user of kvd has to have installed.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "proto"
PACKAGE = Path("kvd") / "v1"
COMPILER = ("grpcio-tools==1.76.0", "grpcio==1.76.0", "protobuf==6.33.5", "setuptools==80.9.0")
# One directory per interpreter version, since the compiler is an extension module.
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
TOOLS = ROOT / "build" / "protoc" / f"{COMPILER[0].replace('==', '-')}-py{VERSION}"


def main() -> None:
    """Write the generated modules into the source tree and name those that changed."""
    for path in generate(ROOT):
        print(path.relative_to(ROOT))


def generate(target: Path) -> list[Path]:
    """Generate into `target`/kvd/v1 and return the files whose contents changed."""
    install_compiler()
    with tempfile.TemporaryDirectory() as fresh:
        sources = sorted(str(path) for path in (SOURCE / PACKAGE).glob("*.proto"))
        outputs = [f"--{kind}={fresh}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{SOURCE}", *outputs, *sources]
        environment = {**os.environ, "PYTHONPATH": str(TOOLS), "PYTHONNOUSERSITE": "1"}
        subprocess.run(command, check=True, env=environment, cwd=ROOT)
        made = sorted((Path(fresh) / PACKAGE).iterdir())
        return [path for path in (_put(file, target) for file in made) if path is not None]


def install_compiler() -> None:
    """Install the pinned compiler into build/protoc unless it is there."""
    if TOOLS.is_dir():
        return
    TOOLS.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TOOLS.parent) as workshop:
        directory = Path(workshop) / "tools"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
        command += ["--target", str(directory), *COMPILER]
        # Captured: pip names conflicts with the surrounding environment, which do not matter here.
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"pip could not install {COMPILER[0]}: {done.stderr.strip()}")
        directory.rename(TOOLS)


def _put(file: Path, target: Path) -> Path | None:
    path = target / PACKAGE / file.name
    new = file.read_bytes()
    if path.exists() and path.read_bytes() == new:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(new)
    return path


if __name__ == "__main__":
    main()
