"""The example file and the document say of each setting what the table says."""

import importlib.util
import re
import tomllib
from pathlib import Path

from kvd.config import serve_config
from kvd.settings_limits import SETTINGS
from tests.unit.settings_scene import NO_FILE, configured
from tests.unit.test_documents_tables import rows

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = (ROOT / "deploy/config/kvd.toml").read_text()
OPERATIONS = (ROOT / "docs/operations.md").read_text()
STALE = "stale: run python deploy/config/generate.py"
# What may be uncommented has no space behind its mark.
UNCOMMENTED = re.sub(r"^#(?=\S)", "", EXAMPLE, flags=re.MULTILINE)


def _generator():
    path = ROOT / "deploy" / "config" / "generate.py"
    spec = importlib.util.spec_from_file_location("settings_generate", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_generated_is_current():
    generator = _generator()
    assert generator.example() == EXAMPLE, STALE
    assert generator.with_table(OPERATIONS) == OPERATIONS, STALE


def test_the_example_has_every_key_with_its_default():
    document = tomllib.loads(UNCOMMENTED)
    [tenant] = document.pop("tenants").items()
    flat = {f"tenants.NAME.{key}": said for key, said in tenant[1].items()}
    for name, said in document.items():
        table = (
            {f"{name}.{key}": each for key, each in said.items()} if isinstance(said, dict) else {}
        )
        flat.update(table or {name: said})
    expected = {
        setting.key: tomllib.loads(f"x = {setting.default}")["x"]
        for setting in SETTINGS
        if setting.key != "tenants"
    }
    assert flat == expected and tenant[0] == "default"


def test_the_example_changes_nothing(tmp_path):
    usual = serve_config({}, {}, NO_FILE)
    assert configured(tmp_path, EXAMPLE) == usual
    whole = configured(tmp_path, UNCOMMENTED)
    assert whole.metrics.is_default is False  # It was said, though it is the same.
    assert (whole.directory, whole.tenants, whole.dram_bytes, whole.allowed_uids, whole.limits) == (
        usual.directory, usual.tenants, usual.dram_bytes, usual.allowed_uids, usual.limits
    )  # fmt: skip
    assert whole.ssd is None and whole.tcp is None and whole.log == usual.log


def test_the_example_explains_every_key():
    for setting in SETTINGS:
        if setting.key == "tenants":
            continue
        lines = EXAMPLE.split(f"\n#{setting.name} = {setting.default}\n")[:-1]
        above = [re.split(r"\n(?!# )", before)[-1] for before in lines]
        said = [" ".join(re.sub("^# ", "", line) for line in each.split("\n")) for each in above]
        assert any(setting.help in each for each in said), setting.key
        assert all(1 <= len(each.split("\n")) <= 4 for each in above), setting.key


def test_the_document_has_every_key():
    table = rows(OPERATIONS, "| key | default | environment | flag | meaning |")
    code = {row[0].strip("`"): [cell.strip("`") for cell in row] for row in table}
    assert list(code) == [setting.key for setting in SETTINGS]
    for setting in SETTINGS:
        key, default, variable, flag, meaning = code[setting.key]
        assert (default, variable, flag) == (setting.default, setting.variable, setting.flag), key
        assert meaning.startswith(setting.help), key
