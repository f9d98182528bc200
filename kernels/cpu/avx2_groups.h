// Groups prepared as columns, and the bins of sixteen codes.
#pragma once

#include "avx2_numbers.h"

static constexpr uint32_t kGroupsKept = kChannelsKept;

// Per channel: the groups of a token block, each sixteen as eight even and eight odd channels.
// Per token: the groups of the block of elements at hand, in order.
struct Prepared {
    alignas(32) float lo[kGroupsKept];
    alignas(32) float hi[kGroupsKept];
    alignas(32) float step[kGroupsKept];
    alignas(32) float inverse[kGroupsKept];
    alignas(32) float bias[kGroupsKept];
    alignas(32) int16_t before[kGroupsKept];  // Ordinal of lo, less one.
    alignas(32) int16_t first[kGroupsKept];
    alignas(32) int16_t last[kGroupsKept];
};

// The groups of sixteen elements.
struct Lanes {
    Halves lo, step;
    __m256i before, first, last;
};

template <bool kPerChannel>
static inline Halves load_halves(const float* column, uint32_t at) {
    if (kPerChannel) return {_mm256_load_ps(column + at), _mm256_load_ps(column + at + 8)};
    const __m256 all = _mm256_broadcast_ss(column + at);
    return {all, all};
}

template <bool kPerChannel>
static inline __m256i load_ordinals(const int16_t* column, uint32_t at) {
    return kPerChannel ? load256(column + at) : _mm256_set1_epi16(column[at]);
}

// `at` is a channel (a multiple of 16) or a group.
template <bool kPerChannel>
static inline Lanes load_lanes(const Prepared& prepared, uint32_t at) {
    return {load_halves<kPerChannel>(prepared.lo, at), load_halves<kPerChannel>(prepared.step, at),
            load_ordinals<kPerChannel>(prepared.before, at),
            load_ordinals<kPerChannel>(prepared.first, at),
            load_ordinals<kPerChannel>(prepared.last, at)};
}

// Put the numbers of eight and eight groups where the form of Prepared wants them.
template <bool kPerChannel>
static inline void keep(float* column, Halves halves) {
    if (kPerChannel) {
        _mm256_store_ps(column, halves.even);
        _mm256_store_ps(column + 8, halves.odd);
        return;
    }
    const __m256 low = _mm256_unpacklo_ps(halves.even, halves.odd);
    const __m256 high = _mm256_unpackhi_ps(halves.even, halves.odd);
    _mm256_store_ps(column, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_store_ps(column + 8, _mm256_permute2f128_ps(low, high, 0x31));
}

// Every group holds its hi, which lies a rounding error beside an edge: lean the encoder's first
// guess so that it falls on the right side.
static inline __m256 lean_of(const Geometry& g, __m256 lo, __m256 hi, __m256 step) {
    const __m256 edge = _mm256_add_ps(lo, _mm256_mul_ps(_mm256_set1_ps(g.steps * g.scale), step));
    const __m256 beyond = _mm256_cmp_ps(edge, hi, _CMP_GT_OQ);
    constexpr float kLittle = 1.0f / (1 << 20);
    return _mm256_blendv_ps(_mm256_set1_ps(1.0f + kLittle), _mm256_set1_ps(1.0f - kLittle), beyond);
}

// Prepare `count` groups from their metadata, sixteen at a time: `metadata` is read, and Prepared
// written, up to a multiple of sixteen.
template <class Number, bool kPerChannel>
static inline void prepare(const Geometry& g, const uint8_t* metadata, uint32_t count,
                           Prepared* prepared) {
    const __m256 steps = _mm256_set1_ps(g.steps), scale = _mm256_set1_ps(g.scale);
    const __m256 one = _mm256_set1_ps(1.0f), offset = _mm256_set1_ps(g.offset);
    const __m256 zero = _mm256_setzero_ps();
    for (uint32_t i = 0; i < count; i += 16) {
        // Pairs (lo, hi) of groups 0..7 and 8..15, to lo and hi of sixteen groups each.
        const __m256i front = load256(metadata + 4 * i), back = load256(metadata + 4 * i + 32);
        const __m256i low = _mm256_set1_epi32(0xffff);
        const __m256i lo_bits = _mm256_permute4x64_epi64(
            _mm256_packus_epi32(_mm256_and_si256(front, low), _mm256_and_si256(back, low)), 0xd8);
        const __m256i hi_bits = _mm256_permute4x64_epi64(
            _mm256_packus_epi32(_mm256_srli_epi32(front, 16), _mm256_srli_epi32(back, 16)), 0xd8);
        const Halves lo = Wide<Number>::values(lo_bits), hi = Wide<Number>::values(hi_bits);
        Halves step, inverse, bias;
        step.even = _mm256_div_ps(_mm256_div_ps(_mm256_sub_ps(hi.even, lo.even), steps), scale);
        step.odd = _mm256_div_ps(_mm256_div_ps(_mm256_sub_ps(hi.odd, lo.odd), steps), scale);
        const __m256 even = _mm256_cmp_ps(step.even, zero, _CMP_GT_OQ);
        const __m256 odd = _mm256_cmp_ps(step.odd, zero, _CMP_GT_OQ);
        inverse.even = _mm256_and_ps(_mm256_div_ps(one, step.even), even);
        inverse.odd = _mm256_and_ps(_mm256_div_ps(one, step.odd), odd);
        inverse.even = _mm256_mul_ps(inverse.even, lean_of(g, lo.even, hi.even, step.even));
        inverse.odd = _mm256_mul_ps(inverse.odd, lean_of(g, lo.odd, hi.odd, step.odd));
        bias.even = _mm256_and_ps(offset, even);
        bias.odd = _mm256_and_ps(offset, odd);
        keep<kPerChannel>(prepared->lo + i, lo);
        keep<kPerChannel>(prepared->hi + i, hi);
        keep<kPerChannel>(prepared->step + i, step);
        keep<kPerChannel>(prepared->inverse + i, inverse);
        keep<kPerChannel>(prepared->bias + i, bias);
        const __m256i first = turn(lo_bits);
        store256(prepared->before + i, _mm256_sub_epi16(first, _mm256_set1_epi16(1)));
        store256(prepared->first + i, first);
        store256(prepared->last + i, turn(hi_bits));
    }
}

// Ordinals of bins: the one before the first, and the last.
struct Bins {
    __m256i before, last;
};

template <class Number>
static inline Bins bins_of(__m256i codes, const Lanes& lanes, float offset) {
    const Halves f0 = code_floats(codes, -offset), f1 = code_floats(codes, 1.0f - offset);
    const Halves begin = {_mm256_add_ps(lanes.lo.even, _mm256_mul_ps(f0.even, lanes.step.even)),
                          _mm256_add_ps(lanes.lo.odd, _mm256_mul_ps(f0.odd, lanes.step.odd))};
    const Halves end = {_mm256_add_ps(lanes.lo.even, _mm256_mul_ps(f1.even, lanes.step.even)),
                        _mm256_add_ps(lanes.lo.odd, _mm256_mul_ps(f1.odd, lanes.step.odd))};
    const __m256i before = Wide<Number>::ceil_ordinals_less_one(begin);
    const __m256i last = Wide<Number>::ceil_ordinals_less_one(end);
    return {_mm256_max_epi16(before, lanes.before),
            _mm256_min_epi16(_mm256_max_epi16(last, lanes.first), lanes.last)};
}

// One less than the number of ordinals in a bin, as u16.
static inline __m256i room_of(const Bins& bins) {
    const __m256i size = _mm256_sub_epi16(bins.last, bins.before);
    return _mm256_sub_epi16(size, _mm256_set1_epi16(1));
}
