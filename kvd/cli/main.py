"""The command `kvd`: finds the verb and runs it."""

import argparse
import sys
from importlib import metadata


def version() -> str:
    try:
        return metadata.version("kvd")
    except metadata.PackageNotFoundError:
        return "unknown (kvd is not installed, only imported)"


def main(words: list[str] | None = None) -> int:
    """Run one verb and return the exit code of the process."""
    parser = argparse.ArgumentParser(
        prog="kvd", description="A per-node daemon that keeps KV caches as bit planes."
    )
    parser.add_argument("--version", action="version", version=f"kvd {version()}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    serve = verbs.add_parser("serve", help="run the daemon until SIGTERM")
    # Imported for its verb only: others start faster without the daemon's libraries.
    from kvd.cli import serve as serving

    serving.add_arguments(serve)
    return serving.run(parser.parse_args(words))


if __name__ == "__main__":
    sys.exit(main())
