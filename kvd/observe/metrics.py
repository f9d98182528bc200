"""Every metric of a daemon, as one table: a name in it is a promise to dashboards and alerts.

Counters named kvd_X_total are the core's counts of the field X (`kvd/core/counts.py`).
"""

from kvd.observe.samples import Kind, Label, Metric

CLASSES = ("anchor", "residual", "exact")
CALLS = (
    "keyspace", "reserve", "seal", "abort", "lookup", "fetch", "prefetch", "clear", "release",
    "renew",
)  # fmt: skip
OUTCOMES = (
    "ok", "invalid", "denied", "incompatible", "overloaded", "late", "lost", "unavailable",
    "corrupt",
)  # fmt: skip
OUTCOMES_IN_SHORT = ("ok", "error")
EVENTS = (
    "Started", "SlabTouched", "SlabFailed", "SlabDetached", "SessionOpened", "SessionEnded",
    "ProcessGone", "DrainStarted", "DrainEnded", "Adopted", "KeyspaceWanted", "ReserveWanted",
    "SealWanted", "AbortWanted", "LookupWanted", "FetchWanted", "ReleaseWanted", "RenewWanted",
    "CancelWanted", "PrefetchWanted", "ClearWanted", "DeliveryMoved", "DeliveryEnded", "Ticked",
    "Recovered", "DayBegan", "SegmentDone", "StripsWritten", "StripsRead", "ReadReleased", "Probed",
    "SpaceSeen", "Committed", "EvictWanted", "ForgetWanted", "PinWanted", "UnpinWanted",
)  # fmt: skip
FAULTS = (
    "io", "no_space", "timeout", "checksum", "format", "device", "gone", "cancelled",
)  # fmt: skip
GONE = ("room", "reclaimed", "replaced", "cleared", "evicted")
STATES = ("free", "filling", "ready", "freeing", "quarantined")
SLABS = ("touching", "idle", "owned", "recalling", "orphan")
LIVES = ("making", "open", "full", "clearing", "free", "recycling", "removing")

_TENANT, _CLASS, _TIER = Label("tenant"), Label("class", CLASSES), Label("tier", ("dram", "ssd"))
_DIRECTORY, _FAULT = Label("directory"), Label("kind", FAULTS)


def _total(name: str, labels: tuple[Label, ...], help: str, meaning: str) -> Metric:
    return Metric(f"kvd_{name}_total", Kind.COUNTER, labels, help, meaning)


def _gauge(name: str, labels: tuple[Label, ...], help: str, meaning: str) -> Metric:
    return Metric(f"kvd_{name}", Kind.GAUGE, labels, help, meaning)


def _seconds(name: str, labels: tuple[Label, ...], help: str, meaning: str) -> Metric:
    return Metric(f"kvd_{name}_seconds", Kind.HISTOGRAM, labels, help, meaning)


_REQUESTS = (
    _total(
        "requests", (Label("call", CALLS), Label("outcome", OUTCOMES)),
        "Requests that got their final answer.",
        "Errors: overloaded is a bound, late a deadline, unavailable a drain or a failing disk.",
    ),
    _total(
        "refused_requests", (_TENANT, Label("outcome", OUTCOMES[1:])),
        "Requests refused before the core heard of them, by kind of error.",
        "invalid: a client is wrong; overloaded: above its tenant's rate, or too many at once.",
    ),
    _seconds(
        "request", (Label("call", CALLS), Label("outcome", OUTCOMES_IN_SHORT)),
        "From a request's arrival to its final answer.",
        "A fetch includes its reads and its byte delivery, a durable seal its commit.",
    ),
    _total(
        "rate_refused", (_TENANT,),
        "Requests refused as they came beyond the requests_per_second of their tenant.",
        "It asks more than it may; kvd_requests_total does not count them.",
    ),
    _total(
        "denied", (Label("what", ("attach", "call", "session")),),
        "Attempts by gRPC whose credential was none, or somebody else's; sessions of other users.",
        "Somebody guesses, or was left behind when tokens changed: the log has addresses.",
    ),
    _total(
        "fetches", (_TENANT, Label("delivery", ("map", "bytes"))),
        "Fetches answered with a promise, be it of nothing.",
        "Load.",
    ),
    _total(
        "fetch_requested_strips", (_TENANT, _TIER, _CLASS),
        "Strips asked of a tier: of dram chunks x lanes of each class, of ssd what dram had not.",
        "The denominator of hit rates. Nothing is asked of ssd where there is none.",
    ),
    _total(
        "fetch_hit_strips", (_TENANT, _TIER, _CLASS),
        "Strips promised out of a tier: of ssd what had to be read, or was being read.",
        "Rises with requested while prefixes are found again.",
    ),
    _total(
        "fetch_missed_strips", (_TENANT, _TIER, _CLASS),
        "Strips asked of a tier and not promised out of it; hit and missed are requested.",
        "Of dram: more memory would help. Of ssd: new text, or too small a budget.",
    ),
    _total(
        "fetch_promised_bytes", (_TENANT, _CLASS),
        "Bytes of promised strips.",
        "What engines did not compute.",
    ),
    _total(
        "fetch_shortfalls",
        (_TENANT, Label("reason", ("not_stored", "condemned", "no_room", "read_failed"))),
        "Fetches promised less than they asked for, by reason.",
        "no_room: dram is held by leases; read_failed and condemned: look at the disk.",
    ),
    _total(
        "fetch_cuts", (_TENANT,),
        "Promises that could not be kept, as a read failed.",
        "Each is a fault of a disk.",
    ),
    _total(
        "fetches_postponed", (_TENANT,),
        "Fetches that waited for dram to grow.",
        "Only just after a start.",
    ),
    _total(
        "deliveries", (_TENANT, Label("outcome", ("whole", "ended_early"))),
        "Byte deliveries that ended.",
        "ended_early: cancelled, late, or wrong bytes.",
    ),
    _total(
        "delivered_bytes", (_TENANT,),
        "Bytes that ended deliveries sent.",
        "Load of links; mapped fetches send none.",
    ),
    _total("lookups", (_TENANT,), "Lookups answered.", "Load."),
    _total(
        "lookup_requested_strips", (_TENANT, _CLASS),
        "Strips that lookups asked after: chunks x lanes of each class.",
        "The denominator of what lookups find.",
    ),
    _total(
        "lookup_hit_strips", (_TENANT, _CLASS),
        "Strips that lookups found, in whatever tier: a lookup does not look where.",
        "As of fetches.",
    ),
    _total(
        "lookup_missed_strips", (_TENANT, _CLASS),
        "Strips that lookups did not find; hit and missed are requested.",
        "As of fetches.",
    ),
    _total("prefetches", (_TENANT,), "Prefetches answered.", "Load."),
    _total("clears", (_TENANT,), "Clears begun.", "Somebody had keyspaces forgotten."),
    _total(
        "reserved_chunks", (_TENANT, Label("state", ("have", "reserved", "replace"))),
        "Chunks of puts that were had already, or got places; replace: of incomplete ones.",
        "have: work that engines did twice.",
    ),
    _total(
        "not_admitted_chunks",
        (_TENANT, Label("reason", ("capacity", "prefix_broken", "growing", "quota"))),
        "Chunks of puts that got no places, by reason.",
        "capacity, quota: everything is held; growing: a start, or slabs changing hands.",
    ),
    _total(
        "sealed_chunks",
        (_TENANT, Label("state", ("new", "replaced", "coalesced", "skipped", "orphaned"))),
        "Chunks of seals by what became of them; new and replaced are visible now.",
        "coalesced: two engines computed the same; orphaned: the parent went meanwhile.",
    ),
    _total("sealed_bytes", (_TENANT, _CLASS), "Bytes that became visible.", "Rate of puts."),
    _total("reservations_opened", (_TENANT,), "Reservations granted.", "Load."),
    _total(
        "reservations_ended",
        (_TENANT, Label("how", ("sealed", "aborted", "lost", "with_session"))),
        "Reservations that ended, lost ones when their time passed.",
        "lost: engines stall between reserve and seal.",
    ),
    _total("sessions_opened", (_TENANT,), "Sessions begun.", "Engines that come and go."),
    _total("sessions_ended", (_TENANT,), "Sessions whose sockets closed.", "As opened."),
    _total("leases_granted", (_TENANT,), "Leases granted.", "Load."),
    _total(
        "leases_ended", (_TENANT, Label("how", ("released", "taken_over", "revoked"))),
        "Leases that ended.",
        "revoked: a reader kept one beyond its time, or its session ended first.",
    ),
    _total(
        "leases_lost", (_TENANT,),
        "Leases that made no progress in their time.",
        "Readers are slow, or forget to release.",
    ),
    _total(
        "condemned_chunks",
        (_TENANT, Label("reason", ("wrong_bytes", "wrong_root", "unreadable"))),
        "Chunks found wrong: by a reader, by the disk's hand, or not readable.",
        "Any at all: memory or a disk corrupts. Puts heal them.",
    ),
    _total(
        "evicted_strips", (_TENANT, _TIER, _CLASS, Label("reason", GONE)),
        "Strips that left a tier. room: for something worth more; reclaimed: with a segment.",
        "A copy that leaves dram stays on disk; see fetch_missed_strips for what it costs.",
    ),
    _total(
        "evicted_bytes", (_TENANT, _TIER, _CLASS, Label("reason", GONE)),
        "Bytes of strips that left a tier.",
        "Beside sealed_bytes it says how fast a tier turns over.",
    ),
)  # fmt: skip

_DRAM = (
    _gauge(
        "dram_bytes", (_TENANT, Label("state", STATES)),
        "Bytes of slabs by the tenant whose they are, and by state.",
        "quarantined and freeing: held by readers and writers that are gone or slow.",
    ),
    _gauge(
        "dram_unowned_bytes", (), "Bytes of slabs that no tenant has had yet.",
        "With all of dram_bytes it is the capacity there is.",
    ),
    _gauge(
        "dram_class_bytes", (_CLASS,), "Bytes of readable strips in dram.",
        "Exact goes first under pressure.",
    ),
    _gauge(
        "dram_configured_bytes", (), "What dram may grow to.", "Above what there is: dram grows."
    ),
    _gauge("slabs", (Label("state", SLABS),), "Slabs by state.", "orphan: their writer vanished."),
    _total("adopted_slabs", (), "Slabs of the daemon before.", "0 after a start: it was cold."),
    _total("adopted_strips", (_CLASS,), "Strips found in them, with their root.", "As above."),
    _total("adopted_bytes", (_CLASS,), "Bytes of those strips.", "As above."),
    _total("slabs_made", (), "Slabs that became capacity.", "At a start, and as tenants change."),
    _total("slabs_failed", (), "Slabs that could not be made.", "The host is short of memory."),
    _total(
        "slabs_recalled", (), "Slabs asked back from a writer.", "Writers compete for dram."
    ),
    _gauge("chunks", (_TENANT,), "Chunks of lanes known, whole or not.", "Size of the index."),
    _gauge("sessions", (_TENANT,), "Sessions that are open or draining.", "Engines here."),
    _gauge("leases", (_TENANT,), "Leases held.", "Readers at work; growth is a leak of theirs."),
    _gauge(
        "lease_bytes", (_TENANT,), "Upper bound of what leases hold.",
        "Near capacity: puts find no room.",
    ),
    _gauge("reservations", (_TENANT,), "Reservations open.", "Puts under way."),
)  # fmt: skip

_SSD = (
    _gauge("ssd_budget_bytes", (), "Budget of everything on disk.", "0: there is no ssd tier."),
    _gauge(
        "ssd_segments_max", (), "Segments that budget and file systems allow now.",
        "Falls when other programs take the disk.",
    ),
    _gauge("ssd_segments", (Label("life", LIVES),), "Segments by life.", "free: room."),
    _gauge("ssd_segment_bytes", (), "Size of a segment.", "Fixed when directories are made."),
    _gauge("ssd_class_bytes", (_CLASS,), "Bytes of strips on disk.", "What a restart finds."),
    _gauge("ssd_tenant_bytes", (_TENANT,), "Bytes on disk, or on their way.", "Who uses the disk."),
    _gauge(
        "ssd_free_bytes", (_DIRECTORY,), "Free space of a directory's file system, as last seen.",
        "Low: segments are given up for others.",
    ),
    _gauge(
        "ssd_directory_degraded", (_DIRECTORY,), "1: nothing is written to a directory.",
        "Its disk failed or hangs.",
    ),
    _gauge(
        "ssd_catalog_degraded", (), "1: the catalog fails, or hangs, or is full.",
        "Nothing becomes durable.",
    ),
    _gauge("ssd_write_queue_bytes", (), "Bytes waiting to be written.", "Grows: disk too slow."),
    _gauge("ssd_write_queue_chunks", (), "Chunks waiting to be written.", "As its bytes."),
    _gauge("ssd_writes", (), "Batches being written.", "At its bound while the queue is long."),
    _gauge("ssd_reading_bytes", (), "Bytes being read.", "At its bound: promises are shortened."),
    _gauge("ssd_waiting_seals", (), "Durable seals waiting for a commit.", "Engines that wait."),
    _gauge("pending_fetches", (), "Fetches not answered yet.", "They wait for disk or for links."),
    _gauge("postponed_fetches", (), "Fetches waiting for dram to grow.", "Only at a start."),
    _gauge("open_deliveries", (), "Byte deliveries under way.", "Links in use."),
    _gauge("ssd_written_today_bytes", (), "Bytes written this day (UTC).", "Against the bound."),
    _gauge("ssd_daily_bound_bytes", (), "Most that is written in a day; 0: no bound.", "Fixed."),
    _total("ssd_written_strips", (_CLASS,), "Strips written and synced.", "Wear."),
    _total("ssd_written_bytes", (_CLASS,), "Bytes written and synced.", "Wear."),
    _total("ssd_write_faults", (_FAULT,), "Strips not written, by kind of fault.", "A disk fails."),
    _total(
        "ssd_durable_strips", (_CLASS,), "Strips that became durable, once each.",
        "Below sealed chunks: the disk lags, or the daily bound is spent.",
    ),
    _total(
        "ssd_moved_strips", (_CLASS,), "Strips written again for their segment to be cleared.",
        "Beside written strips: write amplification.",
    ),
    _total("ssd_durable_chunks", (), "Chunks settled by commits, moved ones too.", "Write-back."),
    _total("ssd_read_strips", (_CLASS,), "Strips read into dram, whole.", "Reloads."),
    _total("ssd_read_bytes", (_CLASS,), "Bytes of those strips.", "Load of the disks."),
    _total("ssd_read_faults", (_FAULT,), "Pieces not read, by kind of fault.", "A disk fails."),
    _total("ssd_commits", (), "Commits of the catalog that are durable.", "Write-back is alive."),
    _total("ssd_commit_faults", (_FAULT,), "Commits that failed.", "The catalog's disk fails."),
    _total(
        "ssd_shed_chunks",
        (Label("reason", (
            "degraded", "daily_bound", "quota", "condemned", "unfounded", "too_large"
)),),
        "Times that a chunk was left in dram only.",
        "daily_bound, quota: raise it, or accept it; too_large: segments are too small.",
    ),
    _total("ssd_segments_chosen", (), "Segments that clearing began of.", "The tier is full."),
    _total("ssd_segments_cleared", (), "Segments that became free.", "As chosen, a bit later."),
    _total("ssd_segments_refused", (), "Segments that found no space.", "The disk is full."),
    _total("ssd_budget_shrinks", (), "Times that less was allowed.", "Others fill the disk."),
    _total("ssd_degradations", (_DIRECTORY,), "Times a directory became degraded.", "Its disk."),
    _total("ssd_recoveries", (_DIRECTORY,), "Times its canary came back well.", "As above."),
    _total("ssd_recovered_chunks", (), "Chunks found at the start.", "0 on new directories."),
    _total("ssd_left_out_chunks", (), "Chunks found and dropped.", "What a crash left unfinished."),
)  # fmt: skip

_DAEMON = (
    _gauge(
        "build_info", (Label("version"), Label("protocol")), "1, with what runs here.",
        "A change is an upgrade.",
    ),
    _gauge(
        "start_time_seconds", (), "When the daemon began, since 1970.",
        "Changes at a restart, when all counters begin at 0.",
    ),
    _gauge("draining", (), "1: no new requests are taken.", "It is about to end."),
    _gauge("generation", (), "The newest generation given out.", "Counts puts, over restarts."),
    _seconds(
        "loop_lag", (), "How late the loop is, looked at every 50 ms.",
        "What every request waits before anything is done about it.",
    ),
    _seconds(
        "step", (Label("event", EVENTS),), "Time of the core for one event.",
        "ReserveWanted: eviction; StripsRead: many pieces.",
    ),
    _seconds(
        "carry_out", (), "Time to carry out the effects of one event.",
        "Copies of byte deliveries, and descriptors sent.",
    ),
)  # fmt: skip

TABLE: tuple[Metric, ...] = (*_REQUESTS, *_DRAM, *_SSD, *_DAEMON)
