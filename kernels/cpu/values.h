// Bit patterns, ordinals and fp32 values of BF16 and FP16; mirrors kvd/codec/numbers.py.
// Everything is static: translation units built for other instruction sets must not share code.
#pragma once

#include <stdint.h>
#include <string.h>

static inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static inline uint16_t load16(const uint8_t* at) {
    uint16_t value;
    memcpy(&value, at, 2);
    return value;
}

// Of memory that somebody may write meanwhile: what was checked is what is used, as the compiler
// may not load it a second time.
static inline uint16_t load16_once(const uint8_t* at) {
    uint16_t value = load16(at);
    __asm__ volatile("" : "+r"(value));
    return value;
}

static inline void store16(uint8_t* at, uint16_t value) { memcpy(at, &value, 2); }

static inline int32_t ordinal_of(uint16_t bits) {
    return bits < 0x8000 ? bits : -1 - static_cast<int32_t>(bits & 0x7fff);
}

static inline uint16_t pattern_of(int32_t ordinal) {
    return static_cast<uint16_t>(ordinal >= 0 ? ordinal : 0x8000 | (-1 - ordinal));
}

struct Bf16 {
    static constexpr uint16_t infinity = 0x7f80;

    static inline float value(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }

    static inline uint16_t nearest(float value) {
        const uint32_t bits = bits_of(value);
        return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }

    static inline int32_t ceil_ordinal(float value) {
        const uint32_t bits = bits_of(value);
        const int32_t truncated = ordinal_of(static_cast<uint16_t>(bits >> 16));
        return truncated + ((bits & 0xffff) != 0 && (bits >> 31) == 0);
    }
};

struct Fp16 {
    static constexpr uint16_t infinity = 0x7c00;
    static constexpr uint32_t bias = 112u << 23;  // Between the exponents, in fp32 bits.
    static constexpr uint32_t smallest_normal = 113u << 23;  // 2^-14 in fp32 bits.

    static inline float value(uint16_t bits) {
        const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
        const uint32_t magnitude = bits & 0x7fff;
        if (magnitude < 0x0400) {
            const float small = static_cast<float>(magnitude) * float_of(103u << 23);
            return float_of(bits_of(small) | sign);
        }
        if (magnitude >= infinity) return float_of(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
        return float_of(sign | ((magnitude << 13) + bias));
    }

    // The magnitude truncated to an FP16 pattern, and the fp32 bits that were cut off, as a
    // fraction of 2^*shift.
    static inline uint32_t truncate(uint32_t magnitude, uint32_t* rest, uint32_t* shift) {
        if (magnitude >= smallest_normal) {
            *shift = 13;
            *rest = magnitude & 0x1fff;
            return (magnitude - bias) >> 13;
        }
        const uint32_t exponent = magnitude >> 23;
        if (exponent < 102) {
            *shift = 31;
            *rest = magnitude != 0;
            return 0;
        }
        const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
        *shift = 126 - exponent;
        *rest = mantissa & ((1u << *shift) - 1);
        return mantissa >> *shift;
    }

    static inline uint16_t nearest(float value) {
        const uint32_t bits = bits_of(value);
        uint32_t rest, shift;
        uint32_t pattern = truncate(bits & 0x7fffffff, &rest, &shift);
        const uint32_t half = 1u << (shift - 1);
        pattern += rest > half || (rest == half && (pattern & 1));
        return static_cast<uint16_t>((bits >> 31) << 15 | pattern);
    }

    static inline int32_t ceil_ordinal(float value) {
        const uint32_t bits = bits_of(value);
        const bool negative = bits >> 31;
        if ((bits & 0x7fffffff) >= 143u << 23) return negative ? -1 - 0x7bff : infinity;
        uint32_t rest, shift;
        const int32_t pattern =
            static_cast<int32_t>(truncate(bits & 0x7fffffff, &rest, &shift));
        return negative ? -1 - pattern : pattern + (rest != 0);
    }
};
