"""The verb `stats` of `kvd-admin`: every number of a daemon, or those of one name."""

import argparse

from kvd.admin.asking import AdminClient
from kvd.cli.tables import show_json, show_table
from kvd.errors import ErrorKind, KvdError
from kvd.v1 import admin_pb2 as admin


def stats_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prefix", nargs="?", default="", metavar="NAME",
                        help="only metrics whose name begins so (all)")  # fmt: skip
    parser.add_argument("--all", action="store_true", help="also those that are 0")


def run_stats(client: AdminClient, arguments: argparse.Namespace) -> int:
    reply = client.call("Stats", admin.StatsRequest(prefix=arguments.prefix))
    if not reply.samples:
        what = f"no metric of this daemon begins with {arguments.prefix!r}; see `kvd-admin stats`"
        raise KvdError(ErrorKind.INVALID, what)
    if show_json(arguments, reply):
        return 0
    shown = (s for s in reply.samples if arguments.all or s.value or _count(s))
    rows = (
        (sample.name, " ".join(f"{x.name}={x.value}" for x in sample.labels), _words(sample))
        for sample in shown
    )
    show_table("", ("metric", "labels", ">value"), rows)
    return 0


def _count(sample: admin.Sample) -> float:
    return sample.buckets[-1].count if sample.buckets else 0.0


def _words(sample: admin.Sample) -> str:
    if sample.buckets:
        return f"{_count(sample):,.0f} times, {sample.value:.6g} in all"
    return f"{sample.value:,.10g}"
