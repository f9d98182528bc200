"""The rare situations that the simulated world must have been in, so that it shows something."""

TENANTS = ("red", "blue")

# Each must happen over the seeds of a test, or the world does not show what it claims to show.
UNTIERED = (
    "a coalesced seal", "a seal in parts", "a skipped seal", "an orphaned seal",
    "a replace", "a replace while leased", "a tail returned",
    "an evicted strip while others fill", "a promise with fewer exact than anchors",
    "a read under a live lease", "a lease lost during a read", "a read discarded by the counter",
    "wrong bytes caught by the counter", "a read past the end of its session",
    "a lease renewed", "a lease taken over", "a lookup with a lease never used",
    "a release twice", "a renewal too late", "a corrupt report", "a condemned shortfall",
    "a shortfall", "everything promised", "another tenant's chunk not seen",
    "a delivery completed", "a delivery stopped at its deadline", "a delivery cancelled",
    "a delivery that found wrong bytes", "a delivery that outlived its lease",
    "a delivery that outlived its session", "a release during delivery",
    "a reservation lost", "a reservation aborted", "a reservation left open",
    "a write behind a seal that came too late",
    "a zombie write into a quarantined extent", "a zombie write into a destroyed slab",
    "a recall honoured", "a recall refused", "a detach ignored",
    "a slab given again for writing",
    "a slab failed", "a slab destroyed", "a foreign slab made anew",
    "another revision's chunk not seen", "a client stopped and resumed",
    "a session ended while its process lives", "a session closed while its process lives",
    "a process gone at once", "a child that writes on", "draining",
    "refused: capacity", "refused: quota", "refused: growing", "refused: prefix broken",
    "refused: lost reservation", "refused: draining",
    "refused: too many keyspaces", "refused: too many reservations", "refused: too many leases",
    "refused: too many leased bytes", "refused: too many requests",
    "dram taken over", "a slab taken over from a writer that lives",
    "a slab left without room for it", "a strip left that does not fit its root",
)  # fmt: skip

# The same, of the ssd tier.
TIERED = (
    "a crash", "a crash between write and commit", "a crash during a commit",
    "a crash during a write", "a crash during a read", "a crash while a segment is made",
    "sectors lost that were not synced", "a file lost that was not synced",
    "an unlinked file back after a crash",
    "a short read that nobody told of", "a misdirected read", "a misdirected write",
    "an end in good order", "a restart with fewer segments",
    "a segment made", "a segment recycled", "a segment removed", "a segment not made",
    "a segment reclaimed", "a strip written again",
    "a segment lost", "a strip refused by its root", "a write that failed",
    "a commit that failed", "a failed commit that is durable",
    "a strip given up that the canary speaks against",
    "the date set back", "the date far off",
    "tier degraded", "tier recovered", "budget shrunk", "day budget spent",
    "a durable seal", "a seal not durable in time", "a seal not durable before its deadline",
    "refused: tier degraded", "refused: the tier hangs", "refused: no tier",
    "a fetch half from disk", "a fetch from disk only", "a joined read", "some pieces ready",
    "more of a promise ready", "a promise kept from disk", "a read that failed",
    "a promise cut by a failed read", "a shortfall by a failed read", "no room to read into",
    "a delivery that waited for a disk", "a delivery without its bytes", "a fetch put off",
    "a fetch late for its disk", "a release before everything was read", "damage that a reader saw",
    "a hung read", "a hung read released", "a read that never began",
    "a prefetch from disk", "a clear", "a clear with readers", "a clear too late",
    "a clear without a tier", "a prefix pinned", "an eviction by an operator",
    "a clear by an operator", "a copy taken over",
    "a chunk left in dram for its quota", "a chunk off the disk for its quota",
    "a quota below what is on disk",
)  # fmt: skip
SOMETIMES = (*UNTIERED, *TIERED)
