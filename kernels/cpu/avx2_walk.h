// Walking a cell in element order, block by block, with the groups at hand prepared.
#pragma once

#include "avx2_groups.h"

// Of one block of elements: what its codes mean, and its ranks, as 16-bit lanes.
struct Stage {
    alignas(32) uint8_t codes[kBlock];
    alignas(32) uint16_t before[kBlock];
    alignas(32) uint16_t room[kBlock];
    alignas(32) uint64_t mask[kBlock / 4];
    alignas(32) uint64_t rank[kBlock / 4];
};

struct Place {
    uint32_t token, channel;
};

// Call f(place, index in the block, number of elements) for each stretch of a row in a block.
template <class F>
static inline void for_stretches(uint32_t width, uint32_t begin, uint32_t count, F f) {
    Place place = {begin / width, begin % width};
    for (uint32_t i = 0; i < count;) {
        const uint32_t left = width - place.channel, wanted = count - i;
        const uint32_t stretch = left < wanted ? left : wanted;
        f(place, i, stretch);
        i += stretch;
        place = {place.token + 1, 0};
    }
}

template <class Number, bool kPerChannel>
struct Walk {
    const kvd_spec& spec;
    const Geometry& g;
    const uint8_t* metadata;
    Prepared prepared;
    uint32_t row;         // Per channel: the token block prepared.
    uint64_t window;      // Per token: the first group prepared.

    Walk(const kvd_spec& spec_, const Geometry& g_, const uint8_t* metadata_)
        : spec(spec_), g(g_), metadata(metadata_), row(UINT32_MAX), window(0) {}

    void enter_block(uint32_t begin, uint32_t count) {
        if (kPerChannel) return;
        const uint32_t end = begin + count - 1;
        window = group_index(begin / spec.width, begin % spec.width);
        const uint64_t last = group_index(end / spec.width, end % spec.width);
        const uint32_t groups = static_cast<uint32_t>(last - window) + 1;
        alignas(32) uint8_t padded[4 * (kBlock / 16 + 32)];
        memcpy(padded, metadata + 4 * window, 4 * groups);
        memset(padded + 4 * groups, 0, 64);
        prepare<Number, false>(g, padded, groups, &prepared);
    }

    void enter_row(uint32_t token) {
        if (!kPerChannel || token / spec.group == row) return;
        row = token / spec.group;
        const uint64_t first = static_cast<uint64_t>(row) * spec.width;
        prepare<Number, true>(g, metadata + 4 * first, spec.width, &prepared);
    }

    uint64_t group_index(uint32_t token, uint32_t channel) const {
        return static_cast<uint64_t>(token) * g.groups_per_row + channel / spec.group;
    }

    // Call f(first element, number of elements, groups, index there) for each part of a stretch:
    // per channel the whole, whose every 16 channels have the next Sixteen; per token each group.
    template <class F>
    inline void for_groups(Place place, uint32_t stretch, F f) {
        if (kPerChannel) {
            f(0u, stretch, prepared.unit + place.channel / 16, 0u);
            return;
        }
        uint32_t at = static_cast<uint32_t>(group_index(place.token, place.channel) - window);
        uint32_t left = spec.group - place.channel % spec.group;
        for (uint32_t i = 0; i < stretch; at++, left = spec.group) {
            const uint32_t part = left < stretch - i ? left : stretch - i;
            f(i, part, prepared.unit + at / 16, at % 16);
            i += part;
        }
    }
};

static inline uint64_t load_word(const uint8_t* at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

// 64 bits from any bit position.
static inline uint64_t load_bits(const uint8_t* data, uint32_t position) {
    const uint8_t* at = data + position / 8;
    const uint32_t shift = position % 8;
    return load_word(at) >> shift | static_cast<uint64_t>(at[8]) << 1 << (63 - shift);
}
