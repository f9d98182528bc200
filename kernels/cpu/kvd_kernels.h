// The C ABI of the CPU kernels. Batches of cells as columns; the forms of cells are defined in
// kvd/codec/layout.py. Nothing here allocates, starts threads, logs or keeps state.
#pragma once

#include <stdint.h>

#if defined(__GNUC__)
#define KVD_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define KVD_EXPORT extern "C"
#endif

#define KVD_ABI 1

enum { KVD_RAW = 0, KVD_BF16 = 1, KVD_FP16 = 2 };
enum { KVD_PER_CHANNEL = 0, KVD_PER_TOKEN = 1 };
enum { KVD_BEST = 0, KVD_PORTABLE = 1 };

typedef struct {
    uint32_t kind;        // KVD_RAW, KVD_BF16, KVD_FP16
    uint32_t item_bytes;  // 1, 2 or 4
    uint32_t tokens;
    uint32_t width;
    uint32_t grouping;
    uint32_t sinks;
    uint32_t anchor_planes;
    uint32_t group;
} kvd_spec;

typedef struct {
    const kvd_spec* specs;
    const uint8_t* spec_index;     // [count]
    const uint64_t* sources;       // [count] addresses of element (0, 0)
    const int64_t* token_strides;  // [count] in elements
    uint64_t count;
    uint64_t path;  // KVD_BEST or KVD_PORTABLE
    uint8_t* out[3];
    uint64_t capacity[3];
    uint64_t start[3];
    uint32_t* offsets;  // [3, count]
    uint32_t* lengths;  // [3, count]
    uint8_t* raw;       // [count]
    uint64_t* ends;     // [3]
} kvd_encode_batch;

typedef struct {
    const kvd_spec* specs;
    const uint8_t* spec_index;
    const uint64_t* strings[3];  // [count] addresses; residuals and exacts may be null
    const uint32_t* lengths;     // [3, count]
    const uint8_t* raw;          // [count]
    const uint64_t* targets;
    const int64_t* token_strides;
    uint64_t count;
    uint64_t planes;  // 1..8, or 16 for exact
    uint64_t path;
    uint8_t* malformed;  // [count], written: 1 where the bytes are no cell
} kvd_decode_batch;

KVD_EXPORT uint32_t kvd_abi(void);

// The name of the path that KVD_BEST takes on this machine.
KVD_EXPORT const char* kvd_path(void);

// Returns how many cells were coded: fewer than count when the next might not fit its buffers.
KVD_EXPORT uint64_t kvd_encode_cells(const kvd_encode_batch* batch);

// Returns how many cells are malformed.
KVD_EXPORT uint64_t kvd_decode_cells(const kvd_decode_batch* batch);

// XXH3-64 of count byte strings at base + offsets[i].
KVD_EXPORT void kvd_checksum_cells(const uint8_t* base, const uint64_t* offsets,
                                   const uint32_t* lengths, uint64_t count, uint64_t* sums);

// An entry of the table at the head of a strip (docs/format.md).
typedef struct {
    uint32_t offset;  // In the strip.
    uint32_t length;  // And flags above KVD_LENGTH_MASK.
    uint64_t checksum;
} kvd_table_entry;

#define KVD_LENGTH_MASK ((1u << 28) - 1)

// Sums the cells of strips into the tables at their heads, which hold offsets and lengths already,
// ascending and inside, and copies the strips from sources[i] to targets[i], sizes[i] bytes each.
// Targets and sizes are multiples of 64; a table ends within its strip.
KVD_EXPORT void kvd_copy_strips(const uint64_t* sources, const uint64_t* targets,
                                const uint64_t* sizes, uint64_t strips, uint64_t cells);
