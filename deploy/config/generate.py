"""Write kvd.toml and the table in docs/operations.md from the table of settings.

`python deploy/config/generate.py`, after a setting was added or changed.
"""

import textwrap
from itertools import groupby
from pathlib import Path

from kvd.settings import TENANT_SECTION, Setting
from kvd.settings_limits import SETTINGS
from kvd.settings_values import span

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "deploy/config/kvd.toml"
DOCUMENT = ROOT / "docs/operations.md"
TABLE_HEAD = "| key | default | environment | flag | meaning |"
HEAD = """\
# Configuration of kvd, for /etc/kvd/kvd.toml, or anywhere with `kvd serve --config FILE`.
#
# Every key is here with its default; what is behind a # without a space may be uncommented.
# Environment variables go over this file, flags over both: `kvd config show` says what is in force
# and where it comes from, `kvd config check FILE` looks for mistakes. Unknown keys are refused.
#
# Sizes have units (B, KiB, MiB, GiB, TiB): "10GiB". Times are seconds, or have units (ms, s, m,
# h): 30 or "30s". Paths begin with /. It is read once, at the start.
"""
ABOUT = {
    "": "",
    "dram": "",
    "ssd": "Disks. The tier is off while neither data nor budget is given.",
    TENANT_SECTION: "One table for each tenant, which may be empty. Without any there is one "
    "tenant, `default`. Names have letters, digits, dots, dashes and underscores; those with dots "
    'are quoted: [tenants."team.a"].',
    "tcp": "Clients of other hosts.",
    "metrics": "For Prometheus.",
    "log": "Lines on stderr, or to the journal.",
    "traces": "For an OpenTelemetry collector.",
    "limits": "Bounds. Few have a reason to change them.",
}


def example() -> str:
    """Return the file of all settings, as they come."""
    blocks = [HEAD]
    for section, settings in groupby(SETTINGS, key=lambda setting: setting.section):
        about = _comment(ABOUT[section]) if ABOUT[section] else ""
        title = {"": "", TENANT_SECTION: "#[tenants.default]\n"}.get(section, f"[{section}]\n")
        keys = [_entry(setting) for setting in settings if setting.key != "tenants"]
        blocks.append(about + title + "\n".join(keys))
    return "\n".join(blocks)


def table() -> str:
    """Return the table of all settings for people."""
    rows = [TABLE_HEAD, "|---|---|---|---|---|"]
    for setting in SETTINGS:
        named = (f"`{each}`" if each else "" for each in (setting.variable, setting.flag))
        cells = (f"`{setting.key}`", f"`{setting.default}`", *named, meaning(setting))
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def meaning(setting: Setting) -> str:
    """Return what a setting is for, and what it may be."""
    if span(setting):
        return f"{setting.help} {'Else ' if setting.nothing else ''}{span(setting)}."
    return setting.help + (f" One of {', '.join(setting.words)}." if setting.words else "")


def _entry(setting: Setting) -> str:
    return _comment(meaning(setting)) + f"#{setting.name} = {setting.default}\n"


def _comment(text: str) -> str:
    lines = textwrap.wrap(text, 97, break_long_words=False, break_on_hyphens=False)
    return "".join(f"# {line}\n" for line in lines)


def with_table(document: str) -> str:
    """Return a document whose table of settings is the one there is."""
    before, _, rest = document.partition(TABLE_HEAD)
    lines = rest.split("\n")
    after = next((n for n, line in enumerate(lines) if n and not line.startswith("|")), len(lines))
    return before + table() + "\n".join(lines[after:])


def main() -> None:
    EXAMPLE.write_text(example())
    DOCUMENT.write_text(with_table(DOCUMENT.read_text()))


if __name__ == "__main__":
    main()
