// XXH3-64 with what every machine of the architecture has (SSE2 on x86-64, NEON on aarch64).
#define XXH_INLINE_ALL
#define XXH_PREFETCH_DIST 1536  // Cells of some KiB follow each other: ask well ahead.
#include "../third_party/xxhash.h"

#include "cell.h"

uint64_t checksum_portable(const uint8_t* data, uint64_t size) { return XXH3_64bits(data, size); }
