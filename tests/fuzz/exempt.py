"""Readers of bytes without a row in the table, each with its reason; `test_complete` compares."""

_OWN = "bytes that this process has just made"
_KERNEL = "what the kernel says of itself, in its own words"
_DECODES = "no reader: a call of the same name further inside, where it is tried"
_PLACES = "a view of memory whose place and size are known; what is in it has its own readers"

EXEMPT: dict[str, str] = {
    "arena/memfd.py:is_lent": _KERNEL,
    "arena/memfd.py:map_memory": _PLACES,
    "arena/slabs.py:__init__": _OWN,
    "arena/pages.py:pages_note": _KERNEL,
    "catalog/loading.py:_map_rows": _PLACES,
    "catalog/looking.py:verdict": "the exit of a scan; tests/unit/test_catalog_damage.py",
    "catalog/scan.py:_blocks": "LMDB in a process of its own: tests/unit/test_catalog_damage.py",
    "cli/tables.py:printable": "text that is shown, and never read",
    "client/comparing.py:_tables": "strips that this client has encoded",
    "client/fetch.py:decode": _DECODES,
    "client/mapping.py:words": _PLACES,
    "client/mapping.py:word": _PLACES,
    "client/reservation.py:abort": "numbers of slabs, as many as are whole; each is looked up",
    "client/strips.py:lay": _OWN,
    "codec/copying.py:_copy_apart": "strips that this client has encoded",
    "codec/native.py:load": "the library beside the package",
    "codec/reference_batch.py:encode": _OWN,
    "config.py:memory_bytes": _KERNEL,
    "daemon/adopting.py:_unfit": "views of slabs; their strips are `disk_strip`",
    "daemon/handover.py:_digests": _OWN,
    "daemon/loop.py:__init__": _OWN,
    "daemon/slab_memory.py:_for_reading": _PLACES,
    "daemon/translating.py:_chunk_keys": _OWN,
    "daemon/translating.py:_digests": _OWN,
    "disk/recognising.py:lock_directory": "the pid of another kvd, shown as it is",
    "doctor/devices.py:_word": _KERNEL,
    "doctor/gpu.py:_device": _KERNEL,
    "doctor/gpu.py:imports": "what a Python of this host prints of itself",
    "engines/border.py:decode": _DECODES,
    "format/rows.py:put_lane": _OWN,
    "host/reading.py:text": _KERNEL,
    "rpc/attached.py:send": _OWN,
    "rpc/lock.py:__init__": "the pid of another kvd, shown as it is",
    "rpc/peers.py:peer_of": _KERNEL,
    "settings_sources.py:_default": "the table of settings itself",
    "speculate/prefix.py:_decode": _DECODES,
}
