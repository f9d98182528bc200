// One cell: its geometry, its groups, and the functions that code it. See kvd/codec/layout.py.
#pragma once

#include "kvd_kernels.h"
#include "values.h"

static constexpr uint32_t kPlanes = 8;
static constexpr uint32_t kExact = 16;
static constexpr uint32_t kBlock = 1024;                 // Elements of one exact block.
static constexpr uint32_t kBlockBytesMax = kBlock * 2;   // Ranks of at most 16 bits.
static constexpr uint32_t kSlack = 32;                   // What wide loads and stores may pass.
static constexpr uint32_t kChannelsKept = 1024;          // Per-channel groups held on the stack.

struct Geometry {
    uint32_t elements, groups, groups_per_row, sinks, blocks;
    uint64_t raw, metadata, plane, anchor, residual;
    float steps, scale, offset;
};

struct CellSource {
    const uint8_t* values;
    int64_t stride;  // Elements from token to token.
};

struct CellTarget {
    uint8_t* values;
    int64_t stride;
    bool stream;  // Rows are aligned to 32 bytes, and may be written past the caches.
};

// Where a cell's strings go; `exact_max` bytes at most may be written to the exact string.
struct CellRoom {
    uint8_t* anchor;
    uint8_t* residual;
    uint8_t* exact;
    uint64_t exact_max;
};

// A cell's strings; those that the asked precision does not need may be null.
struct CellStrings {
    const uint8_t* anchor;
    const uint8_t* residual;
    const uint8_t* exact;
    uint64_t exact_bytes;
};

static inline Geometry geometry_of(const kvd_spec& spec) {
    Geometry g;
    g.elements = spec.tokens * spec.width;
    g.groups_per_row = spec.grouping == KVD_PER_CHANNEL
                           ? spec.width
                           : (spec.width + spec.group - 1) / spec.group;
    const uint32_t rows = spec.grouping == KVD_PER_CHANNEL
                              ? (spec.tokens + spec.group - 1) / spec.group
                              : spec.tokens;
    g.groups = rows * g.groups_per_row;
    g.sinks = spec.sinks < spec.tokens ? spec.sinks : spec.tokens;
    g.blocks = (g.elements + kBlock - 1) / kBlock;
    g.raw = static_cast<uint64_t>(g.elements) * spec.item_bytes;
    g.metadata = 4 * static_cast<uint64_t>(g.groups);
    g.plane = (g.elements + 7) / 8;
    g.anchor = g.metadata + 2 * static_cast<uint64_t>(g.sinks) * spec.width +
               spec.anchor_planes * g.plane;
    g.residual = (kPlanes - spec.anchor_planes) * g.plane;
    g.steps = static_cast<float>((1 << spec.anchor_planes) - 1);
    g.scale = static_cast<float>(1 << (kPlanes - spec.anchor_planes));
    g.offset = static_cast<float>(1 << (kPlanes - spec.anchor_planes)) * 0.5f;
    return g;
}

struct Group {
    float lo, hi, step;
    int32_t first, last;
};

template <class Number>
static inline Group group_of(const Geometry& g, uint16_t lo, uint16_t hi) {
    Group group;
    group.lo = Number::value(lo);
    group.hi = Number::value(hi);
    group.step = (group.hi - group.lo) / g.steps / g.scale;
    group.first = ordinal_of(lo);
    group.last = ordinal_of(hi);
    return group;
}

// Whether a coded cell can have a group of these ends.
template <class Number>
static inline bool group_valid(uint16_t lo, uint16_t hi) {
    const uint16_t infinity = Number::infinity;
    if ((lo & infinity) == infinity || (hi & infinity) == infinity) return false;
    const int32_t first = ordinal_of(lo), last = ordinal_of(hi);
    if (first > last || (first == -1 && last == 0)) return false;
    const uint32_t span = bits_of(Number::value(hi) - Number::value(lo));
    return (span & 0x7f800000) != 0x7f800000;
}

template <class Number>
static inline bool groups_valid(const uint8_t* metadata, uint32_t groups) {
    bool valid = true;
    for (uint32_t i = 0; i < groups; i++) {
        valid &= group_valid<Number>(load16(metadata + 4 * i), load16(metadata + 4 * i + 2));
    }
    return valid;
}

// Where the strings of blocks lie: false when the lengths do not add up to `bytes`. They are looked
// at again block by block, and may have changed by then: nobody keeps a writer from its slab.
static inline bool blocks_valid(const uint8_t* exact, uint64_t bytes, uint32_t blocks) {
    uint64_t total = 2 * static_cast<uint64_t>(blocks);
    if (bytes < total) return false;
    for (uint32_t i = 0; i < blocks; i++) total += (load16(exact + 2 * i) + 7u) / 8;
    return total == bytes;
}

// Encoders return the exact string's length, or -1 when the cell must be raw. Decoders return
// false for malformed bytes; anchor and residual lengths were checked by the caller. Values and
// strings may change at any time: encoders end and write a cell, of no one moment, all the same.
int64_t encode_cell_portable(const kvd_spec& spec, const CellSource& source, const CellRoom& room);
bool decode_cell_portable(const kvd_spec& spec, const CellStrings& strings,
                          const CellTarget& target, uint32_t planes);

#if defined(__x86_64__)
#define KVD_HAVE_AVX2 1
// Whether the wide code takes cells of this form; the portable code takes the others.
bool avx2_takes(const kvd_spec& spec);
int64_t encode_cell_avx2(const kvd_spec& spec, const CellSource& source, const CellRoom& room);
bool decode_cell_avx2(const kvd_spec& spec, const CellStrings& strings, const CellTarget& target,
                      uint32_t planes);
uint64_t checksum_avx2(const uint8_t* data, uint64_t size);
#endif
uint64_t checksum_portable(const uint8_t* data, uint64_t size);
