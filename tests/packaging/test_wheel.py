"""What the source archive and the wheel hold, and that both are built from the archive alone."""

import shutil
import subprocess
import zipfile
from email.parser import Parser

import pytest

from tests.packaging.installed import ROOT, run, unpack

NATIVE = "kvd/codec/kvd_kernels.so"
LICENCES = {"LICENSE", "kernels/third_party/xxhash.LICENSE"}


def tracked(*paths):
    """Return the files of the source tree, those that are not committed yet included."""
    flags = ["--cached", "--others", "--exclude-standard"]
    words = ["git", "-C", str(ROOT), "ls-files", "-z", *flags, *paths]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return {path for path in done.stdout.split("\0") if path and (ROOT / path).is_file()}


@pytest.fixture(scope="module")
def tree(sdist, tmp_path_factory):
    return unpack(sdist, tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def names(wheel):
    with zipfile.ZipFile(wheel) as opened:
        return {name for name in opened.namelist() if not name.endswith("/")}


def test_the_archive_holds_what_is_built_and_said(tree):
    held = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    wanted = tracked("kvd", "kernels", "proto", "docs", "tests/tidy")
    wanted |= {"pyproject.toml", "CMakeLists.txt", "README.md", "CHANGELOG.md", "LICENSE"}
    assert wanted <= held
    # No results of measurements, no texts of others, nothing that was built here.
    assert not [name for name in held if name.startswith("bench/texts") or name.endswith(".so")]
    assert held <= tracked() | {"PKG-INFO"}


def test_an_archive_builds_an_equal_archive(tree, sdist, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(tree, copy)
    words = "from scikit_build_core.build import build_sdist; build_sdist('out')"
    run(["python", "-c", words], copy)
    [again] = (copy / "out").iterdir()
    (tmp_path / "again").mkdir()
    rebuilt = unpack(again, tmp_path / "again")
    for path in tree.rglob("*"):
        if path.is_file():
            assert (rebuilt / path.relative_to(tree)).read_bytes() == path.read_bytes()


def test_the_wheel_holds_the_product_and_nothing_else(names):
    info = {name for name in names if ".dist-info/" in name}
    product = set(tracked("kvd"))
    native = {NATIVE} if shutil.which("c++") or shutil.which("g++") else set()
    assert names - info == product | native
    [directory] = {name.partition("/")[0] for name in info}
    told = {name.removeprefix(directory + "/") for name in info}
    files = {"METADATA", "WHEEL", "RECORD", "entry_points.txt"}
    assert told == files | {f"licenses/{name}" for name in LICENCES}


def test_the_wheel_is_typed_and_for_any_python_of_this_machine(names, wheel):
    assert "kvd/py.typed" in names and "kvd/v1/kvd_pb2.pyi" in names
    native = NATIVE in names
    assert ("-py3-none-linux_" if native else "-py3-none-any") in wheel.name


def test_metadata(wheel):
    with zipfile.ZipFile(wheel) as opened:
        [name] = [each for each in opened.namelist() if each.endswith("/METADATA")]
        told = Parser().parsestr(opened.read(name).decode())
        [entries] = [each for each in opened.namelist() if each.endswith("entry_points.txt")]
        commands = opened.read(entries).decode().splitlines()
        assert "kvd = kvd.cli.main:main" in commands
        assert "kvd-admin = kvd.cli.admin:main" in commands
    assert told["Name"] == "kvd" and told["License-Expression"] == "Apache-2.0"
    assert set(told.get_all("License-File")) == LICENCES
    required = [each for each in told.get_all("Requires-Dist") if "extra" not in each]
    assert required and all(">=" in each and "<" not in each for each in required)
    assert told.get_payload().startswith("# kvd")


def test_nothing_of_the_source_tree_is_seen(environment):
    code = "import kvd.codec, sys; print(kvd.codec.__file__); print('\\n'.join(sys.path))"
    where, *paths = environment.run(environment.python, "-c", code).stdout.splitlines()
    assert where.startswith(str(environment.directory))
    assert str(ROOT) not in paths
    assert environment.run(environment.kvd, "--version").stdout.startswith("kvd 0.")


def test_what_is_not_asked_for_is_not_there(environment):
    code = "from importlib.util import find_spec; print(find_spec('torch'), find_spec('pytest'))"
    assert environment.run(environment.python, "-c", code).stdout.split() == ["None", "None"]


def test_every_module_of_the_wheel_is_imported(environment, names):
    """Catch a module that needs what the wheel leaves out, or what its metadata do not name."""
    heavy = ("kvd/speculate/", "kvd/engines/")  # They need torch.
    modules = sorted(
        name.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
        for name in names if name.endswith(".py") and not name.startswith(heavy)
    )  # fmt: skip
    code = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    environment.run(environment.python, "-W", "ignore", "-c", code, *modules)
