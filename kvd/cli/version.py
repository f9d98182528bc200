"""Which kvd this is, as its package says."""

from importlib import metadata


def version() -> str:
    try:
        return metadata.version("kvd")
    except metadata.PackageNotFoundError:
        return "unknown (kvd is not installed, only imported)"
