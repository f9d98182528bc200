"""Bugs planted in the quotas of tenants."""

from kvd.core import save, shares, slabs
from tests.simulation.planted import Patch, Plant


def written_beyond_the_quota(patch: Patch) -> None:
    patch.setattr(save, "admits", lambda state, row, classes: True)


def slabs_beyond_the_quota(patch: Patch) -> None:
    for module in (shares, slabs):
        patch.setattr(module, "may_grow", lambda state, session: True)


PLANTS = (
    Plant(written_beyond_the_quota, "quota: .* on disk", tiered=True),
    Plant(slabs_beyond_the_quota, "quota: .* in dram", tiered=True),
)
