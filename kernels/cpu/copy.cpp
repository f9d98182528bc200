// Strips copied and their cells summed in one pass: a cell is summed as it comes from memory, and
// copied while it is in the nearest cache. What is written goes past the caches, as in a large
// memory copy: nobody reads it here.
#include <string.h>

#include "kvd_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr uint64_t kLine = 64;
constexpr uint64_t kAhead = 4096;  // While lines are written, those of the next cells are fetched.

// `to` is aligned to a line, `size` a multiple of one.
void copy_past_caches(uint8_t* to, const uint8_t* from, uint64_t size) {
#if defined(__x86_64__)
    for (uint64_t at = 0; at < size; at += kLine) {
        _mm_prefetch(reinterpret_cast<const char*>(from + at + kAhead), _MM_HINT_T0);
        const __m128i* source = reinterpret_cast<const __m128i*>(from + at);
        __m128i* target = reinterpret_cast<__m128i*>(to + at);
        const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
        const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
        _mm_stream_si128(target, a);
        _mm_stream_si128(target + 1, b);
        _mm_stream_si128(target + 2, c);
        _mm_stream_si128(target + 3, d);
    }
#else
    memcpy(to, from, size);
#endif
}

}  // namespace

KVD_EXPORT void kvd_copy_strips(const uint64_t* sources, const uint64_t* targets,
                                const uint64_t* sizes, uint64_t strips, uint64_t cells) {
    for (uint64_t s = 0; s < strips; s++) {
        uint8_t* from = reinterpret_cast<uint8_t*>(sources[s]);
        uint8_t* to = reinterpret_cast<uint8_t*>(targets[s]);
        kvd_table_entry* table = reinterpret_cast<kvd_table_entry*>(from);
        // The lines of the table go last: they are not complete before.
        const uint64_t head = (cells * sizeof(kvd_table_entry) + kLine - 1) / kLine * kLine;
        uint64_t copied = head;
        for (uint64_t i = 0; i < cells; i++) {
            const uint64_t offset = table[i].offset;
            const uint32_t length = table[i].length & KVD_LENGTH_MASK;
            kvd_checksum_cells(from, &offset, &length, 1, &table[i].checksum);
            const uint64_t end = (offset + length) / kLine * kLine;
            if (end <= copied) continue;
            copy_past_caches(to + copied, from + copied, end - copied);
            copied = end;
        }
        if (copied < sizes[s]) copy_past_caches(to + copied, from + copied, sizes[s] - copied);
        copy_past_caches(to, from, head);
    }
#if defined(__x86_64__)
    _mm_sfence();  // Before anybody is told that the strips are there.
#endif
}
