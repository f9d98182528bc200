"""kvd as its users get it: a source archive, the wheel built from that alone, an environment."""

import os
import subprocess
import sys
import tarfile
import venv
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0
_MAKE_SDIST = (
    "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
)


def plain_environment(**changes: str) -> dict[str, str]:
    """Return an environment in which nothing points into the source tree."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("KVD_", "PYTHON"))}
    # CMake may be beside this interpreter only.
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
    return {**kept, "PATH": path, **changes}


def run(words: list, cwd: Path, **changes: str) -> subprocess.CompletedProcess:
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=plain_environment(**changes), capture_output=True,
        text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 0, f"{words[:4]}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def make_sdist(directory: Path) -> Path:
    """Return the source archive of this tree."""
    run([sys.executable, "-c", _MAKE_SDIST, directory], ROOT)
    [archive] = directory.glob("kvd-*.tar.gz")
    return archive


def make_wheel(archive: Path, directory: Path) -> Path:
    """Return the wheel built from a source archive, offline and far from this tree."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    flags = ["--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    run([*pip, "wheel", *flags, "--wheel-dir", directory, archive], directory)
    [wheel] = directory.glob("kvd-*.whl")
    return wheel


def unpack(archive: Path, directory: Path) -> Path:
    with tarfile.open(archive) as opened:
        opened.extractall(directory, filter="data")
    [tree] = directory.iterdir()
    return tree


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with the wheel, and what it asks for, linked from this one's."""

    directory: Path

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    @property
    def kvd(self) -> Path:
        return self.directory / "bin" / "kvd"

    @property
    def kvd_admin(self) -> Path:
        return self.directory / "bin" / "kvd-admin"

    def run(self, *words: object) -> subprocess.CompletedProcess:
        return run([*words], self.directory)


def install(wheel: Path, directory: Path) -> Environment:
    """Return a new environment in which kvd comes from the wheel and from nowhere else."""
    venv.create(directory, symlinks=True, with_pip=False)
    made = Environment(directory)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python"]
    run([*pip, made.python, "install", "--no-index", "--no-deps", wheel], directory)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(made.run(made.python, "-c", where).stdout.strip())
    required = made.run(made.python, "-c", "from importlib import metadata as m; "
                        "print('\\n'.join(m.requires('kvd')))").stdout  # fmt: skip
    for distribution in needed(required.splitlines()):
        _link(distribution, site)
    return made


def needed(requirements: list[str]) -> list[metadata.Distribution]:
    """Return what requirements bring in, extras left out, as it is installed here."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(requirements)
    while waiting:
        requirement = Requirement(waiting.pop())
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        name = canonicalize_name(requirement.name)
        if wanted and name not in found:
            found[name] = metadata.distribution(name)
            waiting += found[name].requires or []
    return list(found.values())


def _link(distribution: metadata.Distribution, site: Path) -> None:
    """Have a distribution in another environment, by links to its files here."""
    for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
        place, source = site / name, Path(str(distribution.locate_file(name)))
        if source.is_dir() and place.exists():  # A namespace of several distributions.
            for each in source.iterdir():
                if not (place / each.name).exists():
                    (place / each.name).symlink_to(each)
        elif source.is_dir() and not (source / "__init__.py").exists() and "." not in name:
            place.mkdir()
            for each in source.iterdir():
                (place / each.name).symlink_to(each)
        elif not place.exists():
            place.symlink_to(source)
