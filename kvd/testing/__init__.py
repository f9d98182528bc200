"""Fakes, conformance suites and the simulated world. Imported by tests only."""

from kvd.testing.simulation import run

__all__ = ["run"]
