"""The verb `report` of `kvd-admin`: looks twice, and writes a page of what it saw."""

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from kvd.admin.asking import AdminClient
from kvd.cli.admin_chain import miss_why
from kvd.cli.admin_show import HEX_SHOWN
from kvd.cli.admin_top import interval
from kvd.cli.figures import Figures
from kvd.cli.messages import human, human_time
from kvd.cli.numbers import look, numbers_of
from kvd.cli.report_page import page
from kvd.cli.tables import show_line
from kvd.v1 import admin_pb2 as admin

MISSES_SHOWN = 50


def report_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", default="kvd-report.html", metavar="FILE",
                        help="where to write the page (kvd-report.html)")  # fmt: skip
    parser.add_argument("--seconds", type=interval, default=2.0, metavar="SECONDS",
                        help="between the two looks that rates are taken over (2)")  # fmt: skip


def run_report(client: AdminClient, arguments: argparse.Namespace) -> int:
    """Write the page; with --json print its numbers instead."""
    first = look(client)
    time.sleep(arguments.seconds)
    last = look(client)
    ever, lately = numbers_of(Figures(), last), numbers_of(first.figures, last)
    if arguments.json:
        show_line(json.dumps({"since_start": ever, "lately": lately}))
        return 0
    text = page(ever, lately, _keyspaces(client), _misses(client))
    path = Path(arguments.output)
    # Whole or not at all: somebody may have the one before open.
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)
    show_line(f"written to {path}")
    return 0


def _keyspaces(client: AdminClient) -> Iterator[tuple[str, ...]]:
    for each in client.call("Keyspaces", admin.KeyspacesRequest()).keyspaces:
        yield (
            each.digest.hex()[:HEX_SHOWN],
            each.tenant,
            f"{each.keyspace.model} {each.keyspace.weight_revision}",
            f"{each.chunks:,}",
            human(sum(c.bytes for c in each.dram)),
            human(sum(c.bytes for c in each.ssd)),
        )


def _misses(client: AdminClient) -> Iterator[tuple[str, ...]]:
    reply = client.call("Misses", admin.MissesRequest())
    for miss in reply.misses[:MISSES_SHOWN]:
        yield (
            human_time(miss.ago_ms),
            miss.tenant,
            miss.model,
            f"{miss.first} of {miss.asked}",
            miss_why(miss.finding),
        )
