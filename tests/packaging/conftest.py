"""One source archive, one wheel and one environment for all tests of what is shipped."""

import pytest

from tests.packaging.installed import install, make_sdist, make_wheel


@pytest.fixture(scope="session")
def sdist(tmp_path_factory):
    return make_sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def wheel(sdist, tmp_path_factory):
    return make_wheel(sdist, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def environment(wheel, tmp_path_factory):
    return install(wheel, tmp_path_factory.mktemp("venv"))
