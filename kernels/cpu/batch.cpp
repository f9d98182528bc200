// Batches: one cell after the other, each on the path that takes its form; raw cells are copied.
#include "cell.h"

#if defined(KVD_HAVE_AVX2)
#include <immintrin.h>
#endif

namespace {

// fp32 operations must round to nearest even and keep subnormals, whatever the caller's thread has
// set (flushing is common beside machine learning code).
struct FloatGuard {
#if defined(__x86_64__)
    unsigned int saved;
    FloatGuard() : saved(_mm_getcsr()) { _mm_setcsr(0x1f80); }
    ~FloatGuard() { _mm_setcsr(saved); }
#elif defined(__aarch64__)
    uint64_t saved;
    FloatGuard() {
        __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
        __asm__ volatile("msr fpcr, %0" ::"r"(static_cast<uint64_t>(0)));
    }
    ~FloatGuard() { __asm__ volatile("msr fpcr, %0" ::"r"(saved)); }
#endif
};

bool wide_machine() {
#if defined(KVD_HAVE_AVX2)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c") &&
           __builtin_cpu_supports("popcnt");
#else
    return false;
#endif
}

uint64_t aligned(uint64_t offset) { return (offset + 7) & ~static_cast<uint64_t>(7); }

void copy_rows(uint8_t* to, uint64_t to_step, const uint8_t* from, uint64_t from_step,
               const kvd_spec& spec) {
    const uint64_t row = static_cast<uint64_t>(spec.width) * spec.item_bytes;
    for (uint32_t t = 0; t < spec.tokens; t++) memcpy(to + t * to_step, from + t * from_step, row);
}

// An encoder reads its values twice in short strides, which the processor foresees badly: ask for
// the next cell while one is at hand. Never faults, whatever the address.
void ask_ahead(const kvd_encode_batch& batch, uint64_t i) {
    constexpr uint64_t kLine = 64, kAheadMax = 16384;
    if (i >= batch.count) return;
    const kvd_spec& spec = batch.specs[batch.spec_index[i]];
    const uint8_t* at = reinterpret_cast<const uint8_t*>(batch.sources[i]);
    const uint64_t row = static_cast<uint64_t>(spec.width) * spec.item_bytes;
    const uint64_t step = static_cast<uint64_t>(batch.token_strides[i]) * spec.item_bytes;
    const uint64_t fitting = kAheadMax / row;
    const uint64_t rows = fitting < spec.tokens ? fitting : spec.tokens;
    for (uint64_t t = 0; t < rows; t++) {
        for (uint64_t b = 0; b < row; b += kLine) __builtin_prefetch(at + t * step + b, 0, 2);
    }
}

int64_t encode_cell(const kvd_spec& spec, const CellSource& source, const CellRoom& room,
                    [[maybe_unused]] bool wide) {
    if (spec.kind == KVD_RAW) return -1;
#if defined(KVD_HAVE_AVX2)
    if (wide && avx2_takes(spec)) return encode_cell_avx2(spec, source, room);
#endif
    return encode_cell_portable(spec, source, room);
}

bool decode_cell(const kvd_spec& spec, const CellStrings& strings, const CellTarget& target,
                 uint32_t planes, [[maybe_unused]] bool wide) {
#if defined(KVD_HAVE_AVX2)
    if (wide && avx2_takes(spec)) return decode_cell_avx2(spec, strings, target, planes);
#endif
    return decode_cell_portable(spec, strings, target, planes);
}

// Whether a batch is too large for its values to stay in caches: then, as a large memory copy does,
// they are written past them, which saves reading every line before it is written.
bool outgrows_caches(const kvd_decode_batch& batch) {
    constexpr uint64_t kLarge = 16u << 20;
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < batch.count && bytes < kLarge; i++) {
        const kvd_spec& spec = batch.specs[batch.spec_index[i]];
        bytes += static_cast<uint64_t>(spec.tokens) * spec.width * spec.item_bytes;
    }
    return bytes >= kLarge;
}

// How a batch is worked: the same for all of its cells.
struct Way {
    bool wide, stream;
};

bool decode_one(const kvd_decode_batch& batch, uint64_t i, Way way) {
    const kvd_spec& spec = batch.specs[batch.spec_index[i]];
    const Geometry g = geometry_of(spec);
    const uint64_t anchor = batch.lengths[i], residual = batch.lengths[batch.count + i];
    const int64_t stride = batch.token_strides[i];
    const uint64_t row = static_cast<uint64_t>(stride) * spec.item_bytes;
    const bool even = (batch.targets[i] | row) % 32 == 0;
    const CellTarget target = {reinterpret_cast<uint8_t*>(batch.targets[i]), stride,
                               way.stream && even};
    const uint8_t* strings[3];
    for (int c = 0; c < 3; c++) {
        strings[c] = batch.strings[c] ? reinterpret_cast<const uint8_t*>(batch.strings[c][i])
                                      : nullptr;
    }
    if (batch.raw[i]) {
        if (anchor != g.raw) return false;
        copy_rows(target.values, row, strings[0],
                  static_cast<uint64_t>(spec.width) * spec.item_bytes, spec);
        return true;
    }
    if (spec.kind == KVD_RAW || anchor != g.anchor) return false;
    const uint32_t planes = static_cast<uint32_t>(batch.planes);
    if (planes > spec.anchor_planes && residual != g.residual) return false;
    const CellStrings cell = {strings[0], strings[1], strings[2],
                              batch.lengths[2 * batch.count + i]};
    return decode_cell(spec, cell, target, planes, way.wide);
}

// How many bytes a cell may need of each buffer.
struct CellNeed {
    uint64_t bytes[3];
};

CellNeed need_of(const kvd_spec& spec, const Geometry& g) {
    if (spec.kind == KVD_RAW || g.anchor + g.residual + 2 * g.blocks >= g.raw) {
        return {{g.raw, 0, 0}};
    }
    const uint64_t anchor = g.anchor > g.raw ? g.anchor : g.raw;
    return {{anchor, g.residual, g.raw - 1 - g.anchor - g.residual}};
}

}  // namespace

KVD_EXPORT uint32_t kvd_abi(void) { return KVD_ABI; }

KVD_EXPORT const char* kvd_path(void) { return wide_machine() ? "avx2" : "portable"; }

KVD_EXPORT uint64_t kvd_encode_cells(const kvd_encode_batch* batch) {
    [[maybe_unused]] const FloatGuard guard;
    const bool wide = batch->path == KVD_BEST && wide_machine();
    const uint64_t count = batch->count;
    uint64_t at[3];
    for (int c = 0; c < 3; c++) at[c] = batch->start[c];
    uint64_t i = 0;
    for (; i < count; i++) {
        const kvd_spec& spec = batch->specs[batch->spec_index[i]];
        const Geometry g = geometry_of(spec);
        const CellNeed need = need_of(spec, g);
        bool fits = true;
        for (int c = 0; c < 3; c++) fits &= aligned(at[c] + need.bytes[c]) <= batch->capacity[c];
        if (!fits) break;
        ask_ahead(*batch, i + 1);
        const CellSource source = {reinterpret_cast<const uint8_t*>(batch->sources[i]),
                                   batch->token_strides[i]};
        const CellRoom room = {batch->out[0] + at[0], batch->out[1] + at[1],
                               batch->out[2] + at[2], need.bytes[2]};
        const int64_t exact = need.bytes[2] ? encode_cell(spec, source, room, wide) : -1;
        uint64_t lengths[3] = {g.anchor, g.residual, static_cast<uint64_t>(exact)};
        if (exact < 0) {
            const uint64_t row = static_cast<uint64_t>(spec.width) * spec.item_bytes;
            copy_rows(room.anchor, row, source.values,
                      static_cast<uint64_t>(source.stride) * spec.item_bytes, spec);
            lengths[0] = g.raw;
            lengths[1] = lengths[2] = 0;
        }
        batch->raw[i] = exact < 0;
        for (int c = 0; c < 3; c++) {
            batch->offsets[c * count + i] = static_cast<uint32_t>(at[c]);
            batch->lengths[c * count + i] = static_cast<uint32_t>(lengths[c]);
            const uint64_t end = at[c] + lengths[c];
            at[c] = aligned(end);
            memset(batch->out[c] + end, 0, at[c] - end);
        }
    }
    for (int c = 0; c < 3; c++) batch->ends[c] = at[c];
    return i;
}

KVD_EXPORT uint64_t kvd_decode_cells(const kvd_decode_batch* batch) {
    [[maybe_unused]] const FloatGuard guard;
    const bool wide = batch->path == KVD_BEST && wide_machine();
    const Way way = {wide, wide && outgrows_caches(*batch)};
    uint64_t malformed = 0;
    for (uint64_t i = 0; i < batch->count; i++) {
        batch->malformed[i] = !decode_one(*batch, i, way);
        malformed += batch->malformed[i];
    }
#if defined(KVD_HAVE_AVX2)
    if (way.stream) _mm_sfence();
#endif
    return malformed;
}

KVD_EXPORT void kvd_checksum_cells(const uint8_t* base, const uint64_t* offsets,
                                   const uint32_t* lengths, uint64_t count, uint64_t* sums) {
#if defined(KVD_HAVE_AVX2)
    if (wide_machine()) {
        for (uint64_t i = 0; i < count; i++) sums[i] = checksum_avx2(base + offsets[i], lengths[i]);
        return;
    }
#endif
    for (uint64_t i = 0; i < count; i++) sums[i] = checksum_portable(base + offsets[i], lengths[i]);
}
