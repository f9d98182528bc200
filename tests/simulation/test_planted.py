"""Every planted bug is found, by the message that it names."""

from collections.abc import Iterable

import pytest

from tests.simulation import (
    plants_core,
    plants_counts,
    plants_handover,
    plants_quotas,
    plants_tier,
)
from tests.simulation.planted import Found, Plant, find_all

PLANTS: tuple[Plant, ...] = (
    *plants_core.PLANTS,
    *plants_tier.PLANTS,
    *plants_counts.PLANTS,
    *plants_handover.PLANTS,
    *plants_quotas.PLANTS,
)


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[str, Found]:
    """What was found of the plants of this run, which may be a few."""
    here: Iterable[Plant] = (
        item.callspec.params["plant"]
        for item in request.session.items
        if "plant" in getattr(getattr(item, "callspec", None), "params", ())
    )
    return {each.plant.name: each for each in find_all(tuple(here))}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_planted_bug_is_found(plant: Plant, found: dict[str, Found]) -> None:
    each = found[plant.name]
    assert each.right, f"seed {each.seed}: {each.message}, not {plant.pattern}"


def test_each_plant_is_another_one() -> None:
    assert len({plant.name for plant in PLANTS}) == len(PLANTS)
