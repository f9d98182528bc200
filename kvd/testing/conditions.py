"""Under which conditions one simulated daemon lives, drawn from the seed: bounds, memory, disks."""

import random
from dataclasses import dataclass, replace

from kvd.clock import NS_PER_MS
from kvd.core.ssd import SEGMENTS_LEAST, SsdConfig
from kvd.identity import chain_digests
from kvd.limits import GIB, PAGE_BYTES, Limits, squeeze
from kvd.testing.weather import Weather

SLAB_UNITS = 32
SLAB_UNITS_TIERED = (10, 14, 20)  # Less dram, so that more is on disk only.
UNIT_PAGES = (1, 80)  # Strips of 80 pages and more are read from disk in pieces.
TIERED = 0.65  # Of all seeds.


@dataclass(frozen=True, slots=True)
class Conditions:
    """Strips have 1 to 3 units; `ssd` None: without a tier."""

    limits: Limits
    unit_pages: int
    dram_bytes: int
    ssd: SsdConfig | None
    weather: Weather | None

    @property
    def unit_bytes(self) -> int:
        return self.unit_pages * PAGE_BYTES


def draw_conditions(rng: random.Random, seed: int, tiered: bool | None) -> Conditions:
    """Draw all conditions; `tiered` None: whether there is a tier, too."""
    drawn = rng.random() < TIERED
    tiered = drawn if tiered is None else tiered
    unit_pages = rng.choice(UNIT_PAGES) if tiered else 1
    slab_units = rng.choice(SLAB_UNITS_TIERED) if tiered else SLAB_UNITS
    limits = _squeezed(rng, seed, unit_pages * PAGE_BYTES, slab_units)
    slabs = rng.randint(4, 8) if tiered else rng.randint(3, 7)
    dram_bytes = slabs * limits.slab_bytes
    if not tiered:
        return Conditions(limits, unit_pages, dram_bytes, None, None)
    ssd = _ssd(rng, unit_pages * PAGE_BYTES)
    devices = tuple(rng.randrange(2) for _ in range(ssd.directories))
    share = rng.choice((0.4, 1.2, 3)) if len(set(devices)) > 1 else rng.choice((1.05, 1.5, 3))
    segments = max(share * ssd.segments_max, SEGMENTS_LEAST + 1)
    device_bytes = int(segments * ssd.segment_bytes) + ssd.spare_bytes
    return Conditions(limits, unit_pages, dram_bytes, ssd, Weather(rng, devices, device_bytes))


def draw_smaller(rng: random.Random, ssd: SsdConfig) -> SsdConfig:
    """Return what a restart finds configured: mostly the same, sometimes fewer segments."""
    if rng.random() < 0.7:
        return ssd
    return replace(ssd, segments_max=max(SEGMENTS_LEAST, ssd.segments_max - rng.randint(1, 6)))


def _squeezed(rng: random.Random, seed: int, unit_bytes: int, slab_units: int) -> Limits:
    lease_bytes_max = rng.choice((2 * slab_units * unit_bytes, GIB))
    limits = Limits(
        slab_bytes=slab_units * unit_bytes,
        lease_bytes_per_session_max=lease_bytes_max,
        keyspaces_per_session_max=2,
        write_batch_bytes=rng.choice((3, 12, 40)) * unit_bytes,
        writes_in_flight_max=rng.choice((1, 2)),
        reads_in_flight_bytes_max=rng.choice((8, 40, 1000)) * unit_bytes,
        read_ns=rng.choice((40, 200, 3000)) * NS_PER_MS,
        write_ns=rng.choice((500, 3000)) * NS_PER_MS,
        probe_ns=rng.choice((200, 1000)) * NS_PER_MS,
        space_ns=rng.choice((200, 2000)) * NS_PER_MS,
    )
    return squeeze(limits, seed)


def _ssd(rng: random.Random, unit_bytes: int) -> SsdConfig:
    segment_bytes = rng.choice((8, 12, 24)) * unit_bytes + PAGE_BYTES
    return SsdConfig(
        directories=rng.choice((1, 1, 2, 3)),
        segment_bytes=segment_bytes,
        segments_max=rng.randint(SEGMENTS_LEAST, 16),
        daily_write_bytes=rng.choice((0, 0, 6, 30)) * unit_bytes,
        spare_bytes=rng.choice((0, segment_bytes)),
    )


def draw_documents(rng: random.Random) -> list[bytes]:
    """Return chains of 3 to 9 chunks, many of which begin alike."""
    texts: list[list[int]] = []
    for _ in range(7):
        stem = rng.choice(texts)[: 4 * rng.randint(1, 5)] if texts and rng.random() < 0.6 else []
        wanted = 4 * rng.randint(3, 9)
        texts.append(stem + [rng.randrange(1000) for _ in range(wanted - len(stem))])
    return [chain_digests(text, 4) for text in texts]
