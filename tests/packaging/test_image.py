"""What the Containerfile copies is enough to build from: no file of the tree is missed."""

import shutil

from tests.packaging.installed import ROOT, run
from tests.unit.containerfile import parse

PATH = ROOT / "deploy" / "container" / "Containerfile"
# All of a build but the compiler, whose sources are the whole of one directory.
BUILD = "import scikit_build_core.build as b; b.build_wheel('out', {'wheel.cmake': 'false'})"


def test_what_is_copied_is_enough(tmp_path):
    build = parse(PATH)[0]
    for line in build.of("COPY"):
        *sources, target = line.split()
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, tmp_path / target)
            else:
                shutil.copy(ROOT / source, tmp_path / target)
    run(["python", "-c", BUILD], tmp_path)
    assert len(list((tmp_path / "out").glob("kvd-*.whl"))) == 1
    assert (tmp_path / "kernels" / "cpu").is_dir() and (tmp_path / "CMakeLists.txt").is_file()
