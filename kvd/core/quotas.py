"""What each tenant may hold, and is sure of: bounds as they are configured, checked at the start.

Counts nothing: `shares` says who may have which slab, `admission` what is written to disk.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvd.core.ssd import SsdConfig, stripes_of
from kvd.errors import ErrorKind, KvdError
from kvd.limits import MIB, PAGE_BYTES
from kvd.types import CLASS_COUNT

SHARED = ""  # Stands for all tenants that have no quota of dram: they share what is left.
# Of what segments can hold. The rest is what is written into while nothing promised is dropped:
# of a segment that is cleared then, three quarters are written again at most.
PROMISED_PARTS = 4


@dataclass(frozen=True, slots=True)
class Quota:
    """Most that a tenant holds of each tier, and nobody takes it away; None: no quota there."""

    dram_bytes: int | None = None
    ssd_bytes: int | None = None


Quotas = Mapping[str, Quota]


def slabs_by_group(quotas: Quotas, slab_count: int, slab_bytes: int) -> dict[str, int]:
    """Return how many slabs each tenant with a quota of dram may have, and all others together."""
    slabs = {
        tenant: quota.dram_bytes // slab_bytes for tenant, quota in quotas.items()
        if quota.dram_bytes is not None
    }  # fmt: skip
    return {**slabs, SHARED: slab_count - sum(slabs.values())}


def promised_bytes_max(ssd: SsdConfig, segments: int) -> int:
    """Return how many bytes of strips the quotas of the ssd tier may name together."""
    # Full ones only: what is open, and what is spare, holds nothing for sure.
    full = segments - CLASS_COUNT * stripes_of(ssd) - 1
    return max(0, full * (ssd.segment_bytes - PAGE_BYTES) * (PROMISED_PARTS - 1) // PROMISED_PARTS)


def check_quotas(quotas: Quotas, slab_count: int, slab_bytes: int, ssd: SsdConfig | None) -> None:
    """Raise INVALID for the first quota that cannot be kept."""
    for tenant, quota in quotas.items():
        if quota.dram_bytes is not None and quota.dram_bytes < slab_bytes:
            raise _refuse(
                f"dram quota of tenant {tenant} is {_size(quota.dram_bytes)}, less than a slab of "
                f"{_size(slab_bytes)}; raise it, or use smaller slabs (slab_bytes)"
            )
        if quota.ssd_bytes is not None and ssd is None:
            raise _refuse(
                f"ssd quota of tenant {tenant} is {_size(quota.ssd_bytes)}, and there is no ssd "
                "tier; name one (--data, --ssd), or leave the quota out"
            )
        if quota.ssd_bytes is not None and quota.ssd_bytes < 0:
            raise _refuse(f"ssd quota of tenant {tenant} is {quota.ssd_bytes}, less than nothing")
    asked = sum(quota.dram_bytes or 0 for quota in quotas.values())
    if asked > slab_count * slab_bytes:
        raise _refuse(
            f"dram quotas are {_size(asked)} together, and dram is {_size(slab_count * slab_bytes)}"
            f" in {slab_count} slabs; lower them, or raise --dram"
        )
    if ssd is not None:
        _check_ssd(quotas, ssd)


def _check_ssd(quotas: Quotas, ssd: SsdConfig) -> None:
    asked = sum(quota.ssd_bytes or 0 for quota in quotas.values())
    most = promised_bytes_max(ssd, ssd.segments_max)
    if asked > most:
        raise _refuse(
            f"ssd quotas are {_size(asked)} together, and {_size(most)} can be promised of "
            f"{ssd.segments_max} segments of {_size(ssd.segment_bytes)}; lower them, or raise --ssd"
        )


def check_tenants(quotas: Quotas, tenants: Iterable[str], slab_count: int, slab_bytes: int) -> None:
    """Raise INVALID when the quotas leave no slab to those of the `tenants` that have none."""
    left = slabs_by_group(quotas, slab_count, slab_bytes)[SHARED]
    without = [t for t in tenants if t not in quotas or quotas[t].dram_bytes is None]
    if without and not left:
        raise _refuse(
            f"dram quotas leave no slab of {_size(slab_bytes)} to {', '.join(without)}; lower "
            "them, or give a quota to every tenant"
        )


def _size(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.10g}MiB"


def _refuse(message: str) -> KvdError:
    return KvdError(ErrorKind.INVALID, message)
