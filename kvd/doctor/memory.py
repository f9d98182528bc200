"""Memory for dram: how much there is, of what pages, what could take it, where it would lie."""

from collections.abc import Iterator

from kvd.arena.pages import SHMEM_ENABLED, pages_note
from kvd.doctor.findings import Finding, fail, note, ok, warn
from kvd.doctor.plan import Scene
from kvd.host.footprint import daemon_bytes, dram_within
from kvd.host.reading import UNLIMITED, field
from kvd.limits import MIB
from kvd.units import human

_MEMINFO = "proc/meminfo"
_MAPS_PER_SLAB = 3  # Read by all, written by one, read into from disk.
_MAPS_OWN = 4096
_TMPFILES = "/etc/tmpfiles.d/kvd.conf"


def size(scene: Scene) -> Iterator[Finding]:
    """Compare dram, and what the daemon itself takes, with the machine's memory."""
    found = scene.host.fields(_MEMINFO)
    total = field(found, "MemTotal", _MEMINFO)
    dram, need = scene.plan.dram_bytes, scene.plan.memory_bytes
    said = f"{human(total, down=True)} of memory, dram is {human(dram)}"
    wanted = f"{human(need)}: dram and {human(need - dram)} for the daemon"
    fix = f"--dram {_lower(total)}"
    if total < dram:
        yield fail("memory.total", said, wanted, fix)
    elif total < need:
        yield warn("memory.total", said, wanted, fix)
    else:
        yield ok("memory.total", said)
    if scene.running:
        return  # Its dram is not available any more, as it should be.
    available = field(found, "MemAvailable", _MEMINFO)
    said = f"{human(available, down=True)} available now"
    if available < need:
        wanted = f"{human(need)}, or the daemon grows until the kernel takes memory from others"
        yield warn("memory.available", said, wanted, f"--dram {_lower(available)}")
    else:
        yield ok("memory.available", said)


def _lower(memory_bytes: int) -> str:
    return f"{max(dram_within(memory_bytes) // MIB, 1)}MiB"


def locked(scene: Scene) -> Iterator[Finding]:
    """Compare the bound of locked memory with dram: the daemon locks none, clients may pin it."""
    soft, _ = scene.host.limit("Max locked memory")
    if soft >= scene.plan.dram_bytes:
        size_text = "unlimited" if soft == UNLIMITED else human(soft)
        yield ok("memory.locked", f"RLIMIT_MEMLOCK is {size_text}")
        return
    said = f"RLIMIT_MEMLOCK is {human(soft)}; the daemon locks nothing"
    wanted = f"{human(scene.plan.dram_bytes)} in clients that pin slabs for a GPU or RDMA"
    fix = "LimitMEMLOCK=infinity in the unit of the engine"
    has_gpu = scene.host.has("proc/driver/nvidia/version")
    yield (
        warn("memory.locked", said, wanted, fix)
        if has_gpu
        else note("memory.locked", said, wanted, fix)
    )


def huge_pages(scene: Scene) -> Iterator[Finding]:
    """Say whether slabs get huge pages, and what reserved ones take away."""
    text = scene.host.text(SHMEM_ENABLED)
    chosen = text.partition("[")[2].partition("]")[0] or text.strip()
    if pages_note(scene.host.path(SHMEM_ENABLED)):
        fix = (
            f"echo advise > {SHMEM_ENABLED} (for every boot: "
            f"'w {SHMEM_ENABLED} - - - - advise' in {_TMPFILES})"
        )
        wanted = "advise: with pages of 4 KiB, reads from disk take more than twice as long"
        yield warn("memory.huge_pages", f"shmem_enabled is {chosen}", wanted, fix)
    else:
        yield ok("memory.huge_pages", f"shmem_enabled is {chosen}")
    found = scene.host.fields(_MEMINFO)
    reserved = found.get("HugePages_Total", 0) * found.get("Hugepagesize", 0)
    left = field(found, "MemTotal", _MEMINFO) - reserved
    said = f"{found.get('HugePages_Total', 0)} huge pages reserved ({human(reserved)})"
    need = scene.plan.memory_bytes
    if reserved and left < need:
        wanted = f"{human(need)} outside them: kvd asks for transparent ones and cannot use these"
        yield warn("memory.reserved_pages", said, wanted, "sysctl -w vm.nr_hugepages=0")
    else:
        yield ok("memory.reserved_pages", f"{said}; kvd uses transparent ones only")


def shared(scene: Scene) -> Iterator[Finding]:
    """Say that /dev/shm does not matter, as people look there first."""
    yield ok("memory.shm", "slabs are memfds: the size of /dev/shm does not bound them")


def overcommit(scene: Scene) -> Iterator[Finding]:
    """Say whether the kernel refuses memory by a sum of promises."""
    mode = scene.host.number("proc/sys/vm/overcommit_memory")
    if mode != 2:
        yield ok("memory.overcommit", f"vm.overcommit_memory is {mode}")
        return
    found = scene.host.fields(_MEMINFO)
    limit, promised = (field(found, k, _MEMINFO) for k in ("CommitLimit", "Committed_AS"))
    left = max(limit - promised, 0)
    dram = scene.plan.dram_bytes
    need = daemon_bytes(dram) if scene.running else scene.plan.memory_bytes
    said = f"vm.overcommit_memory is 2, and {human(left, down=True)} can still be promised"
    if left < need:
        fix = "sysctl -w vm.overcommit_memory=0"
        yield fail("memory.overcommit", said, human(need), fix)
    else:
        yield ok("memory.overcommit", said)


def maps(scene: Scene) -> Iterator[Finding]:
    """Compare the bound of mappings with the slabs there will be."""
    most = scene.host.number("proc/sys/vm/max_map_count")
    need = scene.plan.slabs * _MAPS_PER_SLAB + _MAPS_OWN
    said = f"vm.max_map_count is {most}, {scene.plan.slabs} slabs"
    if most < need:
        yield fail("memory.maps", said, str(need), f"sysctl -w vm.max_map_count={need}")
    else:
        yield ok("memory.maps", said)


def swap(scene: Scene) -> Iterator[Finding]:
    """Say whether dram can be swapped out."""
    total = field(scene.host.fields(_MEMINFO), "SwapTotal", _MEMINFO)
    if not total:
        yield ok("memory.swap", "no swap")
        return
    said = f"{human(total)} of swap: dram can be swapped out, and is slower than recomputing then"
    yield note("memory.swap", said, "none for kvd", "MemorySwapMax=0 in kvd.service")


def nodes(scene: Scene) -> Iterator[Finding]:
    """Say on which NUMA nodes dram would lie."""
    root = "sys/devices/system/node"
    names = [n for n in scene.host.names(root) if n.startswith("node") and n[4:].isdigit()]
    if len(names) < 2:
        yield ok("memory.numa", f"{len(names)} NUMA node")
        return
    free = {}
    for name in names:
        path = f"{root}/{name}/meminfo"
        free[int(name[4:])] = field(scene.host.fields(path), "MemFree", path)
    each = ", ".join(f"node {n} has {human(size, down=True)}" for n, size in sorted(free.items()))
    said = f"{len(names)} NUMA nodes, free: {each}; dram lies where the daemon's threads run"
    if max(free.values()) < scene.plan.dram_bytes:
        yield note("memory.numa", f"{said}, and over several as it is larger than any")
        return
    best = max(sorted(free), key=lambda node: free[node])
    wanted = "the node of the GPUs and drives, when there is one (lspci -vv names it)"
    yield note("memory.numa", said, wanted, f"NUMAPolicy=bind and NUMAMask={best} in kvd.service")


def descriptors(scene: Scene) -> Iterator[Finding]:
    """Compare the bound of open files with the slabs: an eighth of it is how many there can be."""
    _, hard = scene.host.limit("Max open files")
    need = max(8 * scene.plan.slabs, 1024)
    said = f"RLIMIT_NOFILE is {'unlimited' if hard == UNLIMITED else hard} at most"
    if hard < 8 * scene.plan.slabs:
        bound = human(hard // 8 * scene.plan.slab_bytes, down=True)
        wanted = f"{need}: 8 for each of {scene.plan.slabs} slabs; dram ends at {bound}"
        yield fail("limits.files", said, wanted, f"LimitNOFILE={need} in kvd.service")
    elif hard < need:
        wanted = f"{need} for clients and segments"
        yield warn("limits.files", said, wanted, f"LimitNOFILE={need} in kvd.service")
    else:
        yield ok("limits.files", f"{said}, {scene.plan.slabs} slabs")
