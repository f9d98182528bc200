"""From a daemon's settings to the core's quotas: refused at the start where they cannot be kept."""

from kvd.config import ServeConfig
from kvd.core.quotas import Quota, Quotas, check_tenants
from kvd.core.state import CoreConfig
from kvd.daemon.recovery import FoundTier


def quotas_of(config: ServeConfig, found: FoundTier | None) -> Quotas:
    """Return the quotas by tenant; raise INVALID naming the first that cannot be kept."""
    quotas = {
        tenant.name: Quota(tenant.dram_quota_bytes, tenant.ssd_quota_bytes)
        for tenant in config.tenants
        if (tenant.dram_quota_bytes, tenant.ssd_quota_bytes) != (None, None)
    }
    core = CoreConfig(config.dram_bytes, config.limits, found.config if found else None, quotas)
    check_tenants(quotas, config.tenant_names, core.slab_count, core.slab_bytes)
    return quotas
