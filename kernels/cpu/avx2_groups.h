// Groups prepared as columns, and the bins of sixteen codes.
#pragma once

#include "avx2_numbers.h"

// Sixteen groups. Per channel: of sixteen channels, the eight even ones first in columns of floats.
// Per token: in order. Together, not as long columns: those would lie powers of two apart.
struct alignas(32) Sixteen {
    float lo[16], hi[16], step[16], inverse[16], bias[16];
    int16_t before[16];  // Ordinal of lo, less one.
    int16_t first[16], last[16];
};

// Per channel: the groups of a token block. Per token: of the block of elements at hand.
struct Prepared {
    Sixteen unit[kChannelsKept / 16];
};

// The groups of sixteen elements.
struct Lanes {
    Halves lo, step;
    __m256i before, first, last;
};

// `column` is one of Sixteen's; `at` is the index of the group there, 0 per channel.
template <bool kPerChannel>
static inline Halves load_halves(const float* column, uint32_t at) {
    if (kPerChannel) return {_mm256_load_ps(column), _mm256_load_ps(column + 8)};
    const __m256 all = _mm256_broadcast_ss(column + at);
    return {all, all};
}

template <bool kPerChannel>
static inline __m256i load_ordinals(const int16_t* column, uint32_t at) {
    return kPerChannel ? load256(column) : _mm256_set1_epi16(column[at]);
}

template <bool kPerChannel>
static inline Lanes load_lanes(const Sixteen& unit, uint32_t at) {
    return {load_halves<kPerChannel>(unit.lo, at), load_halves<kPerChannel>(unit.step, at),
            load_ordinals<kPerChannel>(unit.before, at),
            load_ordinals<kPerChannel>(unit.first, at), load_ordinals<kPerChannel>(unit.last, at)};
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

struct Patterns {
    __m256i lo, hi;
};

// Pairs (lo, hi) of sixteen groups, to lo and hi in order.
static inline Patterns load_ends(const uint8_t* metadata) {
    const __m256i front = load256(metadata), back = load256(metadata + 32);
    const __m256i low = _mm256_set1_epi32(0xffff);
    return {_mm256_permute4x64_epi64(_mm256_packus_epi32(_mm256_and_si256(front, low),
                                                         _mm256_and_si256(back, low)),
                                     0xd8),
            _mm256_permute4x64_epi64(
                _mm256_packus_epi32(_mm256_srli_epi32(front, 16), _mm256_srli_epi32(back, 16)),
                0xd8)};
}

// Of all groups of a cell: whether a coded cell can have them, and whether the inverse of a step
// may not be finite.
struct GroupsState {
    bool valid, tiny;
};

template <class Number>
static inline void look_at_ends(Patterns ends, __m256i* wrong, __m256* tiny) {
    const __m256i first = turn(ends.lo), last = turn(ends.hi);
    const __m256i infinity = _mm256_set1_epi16(static_cast<short>(Number::infinity));
    const __m256i outermost = _mm256_set1_epi16(static_cast<short>(-Number::infinity));
    // In order of ordinals NaN and the infinities are outermost.
    __m256i bad = _mm256_or_si256(_mm256_cmpgt_epi16(first, last),
                                  _mm256_cmpgt_epi16(outermost, first));
    bad = _mm256_or_si256(bad, _mm256_cmpeq_epi16(_mm256_max_epi16(last, infinity), last));
    const __m256i zeros = _mm256_and_si256(
        _mm256_cmpeq_epi16(last, _mm256_setzero_si256()),
        _mm256_cmpeq_epi16(first, _mm256_set1_epi32(-1)));
    bad = _mm256_or_si256(bad, zeros);
    const Halves lo = Wide<Number>::values(ends.lo), hi = Wide<Number>::values(ends.hi);
    const __m256 spans[2] = {_mm256_sub_ps(hi.even, lo.even), _mm256_sub_ps(hi.odd, lo.odd)};
    const __m256 largest = _mm256_set1_ps(3.4028235e38f), small = _mm256_set1_ps(1e-30f);
    for (int i = 0; i < 2; i++) {
        const __m256 beyond = _mm256_cmp_ps(spans[i], largest, _CMP_GT_OQ);
        const __m256 some = _mm256_cmp_ps(spans[i], _mm256_setzero_ps(), _CMP_GT_OQ);
        bad = _mm256_or_si256(bad, _mm256_castps_si256(beyond));
        *tiny = _mm256_or_ps(*tiny,
                             _mm256_and_ps(_mm256_cmp_ps(spans[i], small, _CMP_LT_OQ), some));
    }
    *wrong = _mm256_or_si256(*wrong, bad);
}

template <class Number>
static inline GroupsState groups_state(const uint8_t* metadata, uint32_t groups) {
    __m256i wrong = _mm256_setzero_si256();
    __m256 tiny = _mm256_setzero_ps();
    uint32_t i = 0;
    for (; i + 16 <= groups; i += 16) {
        look_at_ends<Number>(load_ends(metadata + 4 * i), &wrong, &tiny);
    }
    if (i < groups) {
        uint8_t padded[64] = {0};
        memcpy(padded, metadata + 4 * i, 4 * (groups - i));
        look_at_ends<Number>(load_ends(padded), &wrong, &tiny);
    }
    return {_mm256_testz_si256(wrong, wrong) != 0, _mm256_movemask_ps(tiny) != 0};
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
        Sixteen* unit = &prepared->unit[i / 16];
        const Patterns ends = load_ends(metadata + 4 * i);
        const Halves lo = Wide<Number>::values(ends.lo), hi = Wide<Number>::values(ends.hi);
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
        keep<kPerChannel>(unit->lo, lo);
        keep<kPerChannel>(unit->hi, hi);
        keep<kPerChannel>(unit->step, step);
        keep<kPerChannel>(unit->inverse, inverse);
        keep<kPerChannel>(unit->bias, bias);
        const __m256i first = turn(ends.lo);
        store256(unit->before, _mm256_sub_epi16(first, _mm256_set1_epi16(1)));
        store256(unit->first, first);
        store256(unit->last, turn(ends.hi));
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
