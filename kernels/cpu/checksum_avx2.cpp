// XXH3-64 built for AVX2; called only on machines that have it.
#define XXH_INLINE_ALL
#define XXH_PREFETCH_DIST 1536  // Cells of some KiB follow each other: ask well ahead.
#include "../third_party/xxhash.h"

#include "cell.h"

#if !defined(__AVX2__)
#error "this file is built with AVX2 enabled"
#endif

uint64_t checksum_avx2(const uint8_t* data, uint64_t size) { return XXH3_64bits(data, size); }
