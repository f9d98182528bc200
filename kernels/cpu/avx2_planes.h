// Codes to bit planes and back, in registers.
#pragma once

#include "avx2_numbers.h"

// Exchange the bits of `a` that have `distance` in their index with those of `b` that have not.
template <int kDistance>
static inline void exchange(__m256i* a, __m256i* b, __m256i mask) {
    const __m256i moved = _mm256_and_si256(
        _mm256_xor_si256(_mm256_srli_epi16(*a, kDistance), *b), mask);
    *b = _mm256_xor_si256(*b, moved);
    *a = _mm256_xor_si256(*a, _mm256_slli_epi16(moved, kDistance));
}

// Eight rows of bytes: bit i of row j becomes bit j of row i.
static inline void transpose_bits(__m256i* row) {
    const __m256i by4 = _mm256_set1_epi8(0x0f), by2 = _mm256_set1_epi8(0x33);
    const __m256i by1 = _mm256_set1_epi8(0x55);
    for (int j = 0; j < 4; j++) exchange<4>(row + j, row + j + 4, by4);
    for (int j = 0; j < 8; j += 4) {
        exchange<2>(row + j, row + j + 2, by2);
        exchange<2>(row + j + 1, row + j + 3, by2);
    }
    for (int j = 0; j < 8; j += 2) exchange<1>(row + j, row + j + 1, by1);
}

// Merge 32 bytes of each of the planes 7 .. 8 - kKnown (planes[i] is plane i) to 256 codes.
template <int kKnown>
static inline void merge_256(const uint8_t* const* planes, uint32_t at, uint8_t* codes) {
    __m256i row[8];
    for (int i = 0; i < 8; i++) {
        row[i] = i >= 8 - kKnown ? load256(planes[i] + at) : _mm256_setzero_si256();
    }
    transpose_bits(row);  // Now byte b of row i is the code of element 8 b + i.
    __m256i pair[8], four[8];
    for (int i = 0; i < 4; i++) {
        pair[i] = _mm256_unpacklo_epi8(row[2 * i], row[2 * i + 1]);
        pair[4 + i] = _mm256_unpackhi_epi8(row[2 * i], row[2 * i + 1]);
    }
    for (int h = 0; h < 8; h += 4) {
        for (int i = 0; i < 2; i++) {
            four[h + i] = _mm256_unpacklo_epi16(pair[h + 2 * i], pair[h + 2 * i + 1]);
            four[h + 2 + i] = _mm256_unpackhi_epi16(pair[h + 2 * i], pair[h + 2 * i + 1]);
        }
    }
    for (int q = 0; q < 4; q++) {
        const __m256i low = _mm256_unpacklo_epi32(four[2 * q], four[2 * q + 1]);
        const __m256i high = _mm256_unpackhi_epi32(four[2 * q], four[2 * q + 1]);
        store256(codes + 32 * q, _mm256_permute2x128_si256(low, high, 0x20));
        store256(codes + 128 + 32 * q, _mm256_permute2x128_si256(low, high, 0x31));
    }
}

// Merge the planes of one block; planes may be read up to a multiple of 32 bytes.
static inline void merge_block(const uint8_t* const* planes, uint32_t at, uint32_t count,
                               uint32_t known, uint8_t* codes) {
    for (uint32_t i = 0; i < count; i += 256) {
        const uint32_t byte = at + i / 8;
        switch (known) {
            case 1: merge_256<1>(planes, byte, codes + i); break;
            case 2: merge_256<2>(planes, byte, codes + i); break;
            case 3: merge_256<3>(planes, byte, codes + i); break;
            case 4: merge_256<4>(planes, byte, codes + i); break;
            case 5: merge_256<5>(planes, byte, codes + i); break;
            case 6: merge_256<6>(planes, byte, codes + i); break;
            case 7: merge_256<7>(planes, byte, codes + i); break;
            default: merge_256<8>(planes, byte, codes + i); break;
        }
    }
}

// Split `count` codes, a multiple of 16, to eight planes (planes[i] is plane i).
static inline void split_block(const uint8_t* codes, uint32_t count, uint8_t* const* planes,
                               uint32_t at) {
    uint32_t i = 0;
    for (; i + 32 <= count; i += 32) {
        __m256i code = load256(codes + i);
        for (int p = 7; p >= 0; p--) {
            const int bits = _mm256_movemask_epi8(code);
            memcpy(planes[p] + at + i / 8, &bits, 4);
            code = _mm256_add_epi8(code, code);
        }
    }
    if (i < count) {
        __m128i code = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
        for (int p = 7; p >= 0; p--) {
            const int bits = _mm_movemask_epi8(code);
            memcpy(planes[p] + at + i / 8, &bits, 2);
            code = _mm_add_epi8(code, code);
        }
    }
}
