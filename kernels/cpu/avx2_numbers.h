// Sixteen 16-bit numbers at a time. fp32 work is done in two halves, even lanes and odd lanes, so
// that memory order is kept without moving anything across lanes.
#pragma once

#include <immintrin.h>

#include "cell.h"

struct Halves {
    __m256 even, odd;
};

static inline __m256i load256(const void* at) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}

// As load16_once.
static inline __m256i load256_once(const void* at) {
    __m256i value = load256(at);
    __asm__ volatile("" : "+x"(value));
    return value;
}

static inline void store256(void* at, __m256i value) {
    _mm256_storeu_si256(static_cast<__m256i*>(at), value);
}

// The 16-bit halves of 32-bit lanes: low ones of `even` to even lanes, of `odd` to odd lanes.
static inline __m256i join_low(__m256i even, __m256i odd) {
    return _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
}

static inline __m256i join_high(__m256i even, __m256i odd) {
    return _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa);
}

// Patterns to ordinals as i16, and back: its own inverse.
static inline __m256i turn(__m256i x) {
    return _mm256_xor_si256(x, _mm256_srli_epi16(_mm256_srai_epi16(x, 15), 1));
}

// All bits from the highest set one down.
static inline __m256i smear(__m256i n) {
    n = _mm256_or_si256(n, _mm256_srli_epi16(n, 1));
    n = _mm256_or_si256(n, _mm256_srli_epi16(n, 2));
    n = _mm256_or_si256(n, _mm256_srli_epi16(n, 4));
    return _mm256_or_si256(n, _mm256_srli_epi16(n, 8));
}

// Codes (0..255 in 16-bit lanes) + `plus` as floats: the code is put into the mantissa of 2^15,
// where the last place is 2^-8. Exact for `plus` in halves.
static inline Halves code_floats(__m256i codes, float plus) {
    const __m256i magic = _mm256_set1_epi32(0x47000000);
    const __m256 minus = _mm256_set1_ps(32768.0f - plus);
    const __m256i high = _mm256_slli_epi16(codes, 8);
    const __m256i even = _mm256_blend_epi16(high, magic, 0xaa);
    const __m256i odd = _mm256_or_si256(_mm256_srli_epi32(high, 16), magic);
    return {_mm256_sub_ps(_mm256_castsi256_ps(even), minus),
            _mm256_sub_ps(_mm256_castsi256_ps(odd), minus)};
}

template <class Number>
struct Wide;

template <>
struct Wide<Bf16> {
    static inline Halves values(__m256i bits) {
        const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000));
        return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)),
                _mm256_castsi256_ps(_mm256_and_si256(bits, high))};
    }

    static inline __m256i ceil_ordinals_less_one(Halves value) {
        const __m256i even = _mm256_castps_si256(value.even);
        const __m256i odd = _mm256_castps_si256(value.odd);
        const __m256i high = join_high(even, odd), low = join_low(even, odd);
        const __m256i sign = _mm256_srai_epi16(high, 15);
        const __m256i ordinal = _mm256_xor_si256(high, _mm256_srli_epi16(sign, 1));
        const __m256i whole = _mm256_cmpeq_epi16(low, _mm256_setzero_si256());
        return _mm256_add_epi16(ordinal, _mm256_or_si256(whole, sign));
    }

    static inline __m256i rounded(__m256 value) {
        const __m256i bits = _mm256_castps_si256(value);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    }

    static inline __m256i nearest(Halves value) {
        return join_high(rounded(value.even), rounded(value.odd));
    }
};

template <>
struct Wide<Fp16> {
    static inline __m256i joined(__m128i even, __m128i odd) {
        return _mm256_set_m128i(_mm_unpackhi_epi16(even, odd), _mm_unpacklo_epi16(even, odd));
    }

    static inline Halves values(__m256i bits) {
        const __m256i even = _mm256_and_si256(bits, _mm256_set1_epi32(0xffff));
        const __m256i packed = _mm256_packus_epi32(even, _mm256_srli_epi32(bits, 16));
        const __m256i apart = _mm256_permute4x64_epi64(packed, 0xd8);
        return {_mm256_cvtph_ps(_mm256_castsi256_si128(apart)),
                _mm256_cvtph_ps(_mm256_extracti128_si256(apart, 1))};
    }

    static inline __m256i ceil_ordinals_less_one(Halves value) {
        constexpr int up = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;
        const __m256i patterns =
            joined(_mm256_cvtps_ph(value.even, up), _mm256_cvtps_ph(value.odd, up));
        return _mm256_sub_epi16(turn(patterns), _mm256_set1_epi16(1));
    }

    static inline __m256i nearest(Halves value) {
        constexpr int even = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        return joined(_mm256_cvtps_ph(value.even, even), _mm256_cvtps_ph(value.odd, even));
    }
};
