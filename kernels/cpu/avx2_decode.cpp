// Decoding cells sixteen elements at a time; called only on machines that have AVX2 and BMI2.
#include "avx2_planes.h"
#include "avx2_walk.h"

namespace {

struct BlockPlanes {
    const uint8_t* at[kPlanes];  // at[i] is plane i of the whole cell, or null.
    uint64_t bytes;
    uint32_t known;
};

BlockPlanes planes_of(const kvd_spec& spec, const Geometry& g, const CellStrings& strings,
                      uint32_t planes) {
    BlockPlanes all;
    all.bytes = g.plane;
    all.known = planes < kPlanes ? planes : kPlanes;
    const uint8_t* anchor = strings.anchor + g.anchor - spec.anchor_planes * g.plane;
    for (uint32_t rank = 0; rank < kPlanes; rank++) {
        const uint8_t* plane = nullptr;
        if (rank < all.known) {
            plane = rank < spec.anchor_planes
                        ? anchor + rank * g.plane
                        : strings.residual + (rank - spec.anchor_planes) * g.plane;
        }
        all.at[kPlanes - 1 - rank] = plane;
    }
    return all;
}

void merge(const BlockPlanes& planes, uint32_t begin, uint32_t count, uint8_t* codes) {
    if (count == kBlock) {
        merge_block(planes.at, begin / 8, count, planes.known, codes);
        return;
    }
    // A last block may end before a whole register does: read from padded copies.
    alignas(32) uint8_t padded[kPlanes][kBlock / 8];
    const uint8_t* copies[kPlanes];
    for (uint32_t i = 0; i < kPlanes; i++) {
        copies[i] = padded[i];
        if (!planes.at[i]) continue;
        memset(padded[i], 0, sizeof(padded[i]));
        memcpy(padded[i], planes.at[i] + begin / 8, planes.bytes - begin / 8);
    }
    merge_block(copies, 0, count, planes.known, codes);
}

void put(uint8_t* to, __m256i value, bool stream) {
    if (stream) {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to), value);
    } else {
        store256(to, value);
    }
}

template <class Number, bool kPerChannel>
struct Decoder {
    const kvd_spec& spec;
    const Geometry& g;
    const CellTarget& target;
    uint32_t planes;
    Walk<Number, kPerChannel> walk;
    Stage stage;  // Not cleared: each block writes what it reads.

    Decoder(const kvd_spec& spec_, const Geometry& g_, const CellStrings& strings,
            const CellTarget& target_, uint32_t planes_)
        : spec(spec_), g(g_), target(target_), planes(planes_), walk(spec_, g_, strings.anchor) {}

    uint8_t* target_at(Place place) const {
        return target.values + 2 * (place.token * target.stride + place.channel);
    }

    // What the codes of a block mean; false when one has an empty bin.
    bool open_bins(uint32_t begin, uint32_t count) {
        const float offset = g.offset;
        __m256i good = _mm256_set1_epi32(-1);
        for_stretches(spec.width, begin, count, [&](Place place, uint32_t at, uint32_t stretch) {
            if (place.token < g.sinks) {
                memset(stage.mask + at / 4, 0, 2 * stretch);
                memset(stage.room + at, 0, 2 * stretch);
                return;
            }
            walk.enter_row(place.token);
            walk.for_groups(place, stretch, [&](uint32_t from, uint32_t part, const Sixteen* unit,
                                            uint32_t group) {
                Lanes lanes = load_lanes<kPerChannel>(*unit, group);
                for (uint32_t i = 0; i < part; i += 16) {
                    if (kPerChannel) lanes = load_lanes<true>(*unit++, 0);
                    const uint32_t e = at + from + i;
                    const __m256i codes = _mm256_cvtepu8_epi16(
                        _mm_load_si128(reinterpret_cast<const __m128i*>(stage.codes + e)));
                    const Bins bins = bins_of<Number>(codes, lanes, offset);
                    const __m256i room = room_of(bins);
                    good = _mm256_and_si256(good, _mm256_cmpgt_epi16(bins.last, bins.before));
                    store256(stage.before + e, bins.before);
                    store256(stage.room + e, room);
                    store256(stage.mask + e / 4, smear(room));
                }
            });
        });
        return _mm256_movemask_epi8(good) == -1;
    }

    // Spread the rank bits of a block into lanes; returns how many bits that took.
    uint32_t spread(const uint8_t* bits, uint32_t count) {
        uint32_t position = 0;
        for (uint32_t i = 0; i < count / 4; i += 2) {
            const uint64_t mask0 = stage.mask[i], mask1 = stage.mask[i + 1];
            const uint32_t size0 = static_cast<uint32_t>(_mm_popcnt_u64(mask0));
            const uint32_t size1 = static_cast<uint32_t>(_mm_popcnt_u64(mask1));
            if (__builtin_expect(size0 + size1 <= 57, 1)) {
                const uint64_t word = load_word(bits + position / 8) >> position % 8;
                stage.rank[i] = _pdep_u64(word, mask0);
                stage.rank[i + 1] = _pdep_u64(word >> size0, mask1);
            } else {
                stage.rank[i] = _pdep_u64(load_bits(bits, position), mask0);
                stage.rank[i + 1] = _pdep_u64(load_bits(bits, position + size0), mask1);
            }
            position += size0 + size1;
        }
        return position;
    }

    // Write the values of a block; false when a rank lies outside of its bin.
    bool close_bins(uint32_t begin, uint32_t count) {
        __m256i excess = _mm256_setzero_si256();
        const bool stream = target.stream;
        for_stretches(spec.width, begin, count, [&](Place place, uint32_t at, uint32_t stretch) {
            if (place.token < g.sinks) return;
            uint8_t* to = target_at(place);
            for (uint32_t i = 0; i < stretch; i += 16) {
                const __m256i rank = load256(stage.rank + (at + i) / 4);
                const __m256i room = load256(stage.room + at + i);
                const __m256i before = load256(stage.before + at + i);
                excess = _mm256_or_si256(excess, _mm256_subs_epu16(rank, room));
                const __m256i ordinal = _mm256_sub_epi16(_mm256_add_epi16(before, rank),
                                                         _mm256_set1_epi32(-1));
                put(to + 2 * i, turn(ordinal), stream);
            }
        });
        return _mm256_testz_si256(excess, excess);
    }

    struct Ends {
        Halves lo, hi, step;
    };

    static Ends ends_of(const Sixteen& unit, uint32_t at) {
        return {load_halves<kPerChannel>(unit.lo, at), load_halves<kPerChannel>(unit.hi, at),
                load_halves<kPerChannel>(unit.step, at)};
    }

    static __m256i value_of(__m256i codes, const Ends& ends, float plus) {
        const Halves f = code_floats(codes, plus);
        Halves y = {_mm256_add_ps(ends.lo.even, _mm256_mul_ps(f.even, ends.step.even)),
                    _mm256_add_ps(ends.lo.odd, _mm256_mul_ps(f.odd, ends.step.odd))};
        // On equal operands these give the second, which matters to zeros. A code with a
        // nonnegative multiple of the step is never below lo.
        if (plus < 0.0f) y = {_mm256_max_ps(ends.lo.even, y.even),
                              _mm256_max_ps(ends.lo.odd, y.odd)};
        y = {_mm256_min_ps(ends.hi.even, y.even), _mm256_min_ps(ends.hi.odd, y.odd)};
        return Wide<Number>::nearest(y);
    }

    void lossy(uint32_t begin, uint32_t count, float plus) {
        const bool stream = target.stream;
        for_stretches(spec.width, begin, count, [&](Place place, uint32_t at, uint32_t stretch) {
            if (place.token < g.sinks) return;
            walk.enter_row(place.token);
            uint8_t* to = target_at(place);
            walk.for_groups(place, stretch, [&](uint32_t from, uint32_t part, const Sixteen* unit,
                                            uint32_t group) {
                Ends ends = ends_of(*unit, group);
                const uint8_t* codes = stage.codes + at + from;
                if (!kPerChannel && planes <= 4 && part % 32 == 0) {
                    from_table(codes, part, ends, plus, to + 2 * from);
                    return;
                }
                for (uint32_t i = 0; i < part; i += 16) {
                    if (kPerChannel) ends = ends_of(*unit++, 0);
                    const __m256i sixteen = _mm256_cvtepu8_epi16(
                        _mm_load_si128(reinterpret_cast<const __m128i*>(codes + i)));
                    put(to + 2 * (from + i), value_of(sixteen, ends, plus), stream);
                }
            });
        });
    }

    // Elements of one group whose codes have four bits: all sixteen values first, then look-up.
    void from_table(const uint8_t* codes, uint32_t count, const Ends& ends, float plus,
                    uint8_t* to) const {
        const __m256i order =
            _mm256_setr_epi16(0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70,  //
                              0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0);
        const __m256i values = value_of(order, ends, plus);
        const __m256i low_byte = _mm256_set1_epi16(0xff), nibble = _mm256_set1_epi8(0x0f);
        const __m256i lows = _mm256_and_si256(values, low_byte);
        const __m256i packed = _mm256_permute4x64_epi64(
            _mm256_packus_epi16(lows, _mm256_srli_epi16(values, 8)), 0xd8);
        const __m256i low = _mm256_permute2x128_si256(packed, packed, 0x00);
        const __m256i high = _mm256_permute2x128_si256(packed, packed, 0x11);
        for (uint32_t i = 0; i < count; i += 32) {
            // Quarters 0, 2, 1, 3, so that unpacking within halves gives memory order.
            const __m256i some = _mm256_permute4x64_epi64(load256(codes + i), 0xd8);
            const __m256i index = _mm256_and_si256(_mm256_srli_epi16(some, 4), nibble);
            const __m256i a = _mm256_shuffle_epi8(low, index);
            const __m256i b = _mm256_shuffle_epi8(high, index);
            put(to + 2 * i, _mm256_unpacklo_epi8(a, b), target.stream);
            put(to + 2 * i + 32, _mm256_unpackhi_epi8(a, b), target.stream);
        }
    }
};

template <class Number, bool kPerChannel>
bool decode(const kvd_spec& spec, const CellStrings& strings, const CellTarget& target,
            uint32_t planes) {
    const Geometry g = geometry_of(spec);
    if (!groups_state<Number>(strings.anchor, g.groups).valid) return false;
    const bool exact = planes == kExact;
    if (exact && !blocks_valid(strings.exact, strings.exact_bytes, g.blocks)) return false;
    const uint8_t* kept = strings.anchor + g.metadata;
    for (uint32_t t = 0; t < g.sinks; t++, kept += 2 * spec.width) {
        memcpy(target.values + 2 * (t * target.stride), kept, 2 * spec.width);
    }
    const BlockPlanes all = planes_of(spec, g, strings, planes);
    const float plus = exact ? 0.0f : static_cast<float>(1 << (kPlanes - planes)) * 0.5f - g.offset;
    Decoder<Number, kPerChannel> decoder(spec, g, strings, target, planes);
    uint64_t at = 2 * static_cast<uint64_t>(g.blocks);
    for (uint32_t b = 0; b < g.blocks; b++) {
        const uint32_t begin = b * kBlock;
        const uint32_t count = g.elements - begin < kBlock ? g.elements - begin : kBlock;
        merge(all, begin, count, decoder.stage.codes);
        decoder.walk.enter_block(begin, count);
        if (!exact) {
            decoder.lossy(begin, count, plus);
            continue;
        }
        const uint32_t bits = load16_once(strings.exact + 2 * b), bytes = (bits + 7) / 8;
        if (bits > 8 * kBlockBytesMax || bytes > strings.exact_bytes - at) return false;
        // Copied, so that wide loads and wrong widths stay inside.
        uint8_t ranks[kBlockBytesMax + kSlack];
        memcpy(ranks, strings.exact + at, bytes);
        memset(ranks + bytes, 0, kSlack);
        at += bytes;
        if (!decoder.open_bins(begin, count)) return false;
        if (decoder.spread(ranks, count) != bits) return false;
        if (!decoder.close_bins(begin, count)) return false;
    }
    return true;
}

}  // namespace

bool avx2_takes(const kvd_spec& spec) {
    if (spec.width % 16 || spec.anchor_planes == kPlanes) return false;
    if (spec.grouping == KVD_PER_CHANNEL) return spec.width <= kChannelsKept;
    return spec.group % 16 == 0;
}

bool decode_cell_avx2(const kvd_spec& spec, const CellStrings& strings, const CellTarget& target,
                      uint32_t planes) {
    const bool per_channel = spec.grouping == KVD_PER_CHANNEL;
    if (spec.kind == KVD_BF16) {
        return per_channel ? decode<Bf16, true>(spec, strings, target, planes)
                           : decode<Bf16, false>(spec, strings, target, planes);
    }
    return per_channel ? decode<Fp16, true>(spec, strings, target, planes)
                       : decode<Fp16, false>(spec, strings, target, planes);
}
