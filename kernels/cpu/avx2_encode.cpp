// Encoding cells sixteen elements at a time; called only on machines that have AVX2 and BMI2.
#include "avx2_planes.h"
#include "avx2_walk.h"

namespace {

int64_t const kRaw = -1;

int32_t smallest(__m256i ordinals) {
    const __m128i least =
        _mm_min_epi16(_mm256_castsi256_si128(ordinals), _mm256_extracti128_si256(ordinals, 1));
    const __m128i flipped = _mm_xor_si128(least, _mm_set1_epi16(static_cast<short>(0x8000)));
    const int found = _mm_cvtsi128_si32(_mm_minpos_epu16(flipped)) & 0xffff;
    return found - 0x8000;
}

int32_t largest(__m256i ordinals) {
    return -1 - smallest(_mm256_xor_si256(ordinals, _mm256_set1_epi32(-1)));
}

struct Range {
    __m256i first, last;

    Range() : first(_mm256_set1_epi16(0x7fff)), last(_mm256_set1_epi16(-0x8000)) {}

    void add(__m256i bits) {
        const __m256i ordinals = turn(bits);
        first = _mm256_min_epi16(first, ordinals);
        last = _mm256_max_epi16(last, ordinals);
    }
};

// NaN and the infinities have the outermost ordinals, so the ends of a group show them.
template <class Number>
bool finite(int32_t first, int32_t last) {
    return first >= -static_cast<int32_t>(Number::infinity) && last < Number::infinity;
}

template <class Number>
bool statistics_per_token(const kvd_spec& spec, const Geometry& g, const CellSource& source,
                          uint8_t* metadata) {
    for (uint32_t token = 0; token < spec.tokens; token++) {
        const uint8_t* row = source.values + 2 * (token * source.stride);
        for (uint32_t begin = 0; begin < spec.width; begin += spec.group, metadata += 4) {
            const uint32_t left = spec.width - begin;
            const uint32_t end = begin + (left < spec.group ? left : spec.group);
            int32_t first = 0, last = 0;
            if (token >= g.sinks) {
                Range range;
                for (uint32_t c = begin; c < end; c += 16) range.add(load256(row + 2 * c));
                first = smallest(range.first);
                last = largest(range.last);
            }
            if (!finite<Number>(first, last)) return false;
            store16(metadata, pattern_of(first));
            store16(metadata + 2, pattern_of(last));
        }
    }
    return true;
}

void store_pairs(uint8_t* metadata, const Range& range, bool empty) {
    const __m256i lo = empty ? _mm256_setzero_si256() : turn(range.first);
    const __m256i hi = empty ? _mm256_setzero_si256() : turn(range.last);
    const __m256i low = _mm256_unpacklo_epi16(lo, hi), high = _mm256_unpackhi_epi16(lo, hi);
    store256(metadata, _mm256_permute2x128_si256(low, high, 0x20));
    store256(metadata + 32, _mm256_permute2x128_si256(low, high, 0x31));
}

template <class Number>
bool statistics_per_channel(const kvd_spec& spec, const Geometry& g, const CellSource& source,
                            uint8_t* metadata) {
    Range all;
    for (uint32_t token = 0; token < spec.tokens; token += spec.group) {
        const uint32_t left = spec.tokens - token;
        const uint32_t end = token + (left < spec.group ? left : spec.group);
        const uint32_t begin = token < g.sinks ? (g.sinks < end ? g.sinks : end) : token;
        for (uint32_t c = 0; c < spec.width;) {
            const bool two = c + 32 <= spec.width;
            const uint32_t second = two ? 16 : 0;
            Range a, b;
            for (uint32_t t = begin; t < end; t++) {
                const uint8_t* at = source.values + 2 * (t * source.stride + c);
                a.add(load256(at));
                b.add(load256(at + 2 * second));
            }
            store_pairs(metadata + 4 * c, a, begin == end);
            if (two) store_pairs(metadata + 4 * c + 64, b, begin == end);
            if (begin < end) {
                all.first = _mm256_min_epi16(all.first, _mm256_min_epi16(a.first, b.first));
                all.last = _mm256_max_epi16(all.last, _mm256_max_epi16(a.last, b.last));
            }
            c += two ? 32 : 16;
        }
        metadata += 4 * static_cast<uint64_t>(spec.width);
    }
    const int32_t first = smallest(all.first), last = largest(all.last);
    return first > last || finite<Number>(first, last);
}

struct Writer {
    uint8_t* at;
    uint64_t pending = 0;
    uint32_t held = 0;  // Fewer than 8 bits between calls.

    // Append `size` bits, 56 at most.
    void put(uint64_t bits, uint32_t size) {
        pending |= bits << held;
        memcpy(at, &pending, 8);
        held += size;
        at += held / 8;
        pending >>= held & 0x38;
        held &= 7;
    }

    void put_long(uint64_t bits, uint32_t size) {
        const uint32_t low = size < 32 ? size : 32;
        put(bits & ((1ull << low) - 1), low);
        if (size > low) put(bits >> low, size - low);
    }
};

template <class Number, bool kPerChannel>
struct Encoder {
    const kvd_spec& spec;
    const Geometry& g;
    const CellSource& source;
    Walk<Number, kPerChannel> walk;
    Stage stage;  // Not cleared: each block writes what it reads.
    bool left = false;  // Whether a value has left its group since the statistics: it has no code.

    Encoder(const kvd_spec& spec_, const Geometry& g_, const CellSource& source_,
            const uint8_t* metadata)
        : spec(spec_), g(g_), source(source_), walk(spec_, g_, metadata) {}

    struct Guess {
        Halves inverse, bias;
    };

    static Guess load_guess(const Sixteen& unit, uint32_t at) {
        return {load_halves<kPerChannel>(unit.inverse, at),
                load_halves<kPerChannel>(unit.bias, at)};
    }

    static bool outside(__m256i ordinals, const Lanes& lanes) {
        const __m256i above = _mm256_cmpgt_epi16(ordinals, lanes.last);
        const __m256i below = _mm256_cmpgt_epi16(lanes.first, ordinals);
        return _mm256_movemask_epi8(_mm256_or_si256(above, below)) != 0;
    }

    // The code, the bin and the rank of sixteen values, to the stage at `e`.
    inline void sixteen(__m256i bits, const Lanes& lanes, const Guess& guess, uint32_t e) {
        const __m256i ordinals = turn(bits);
        const Halves value = Wide<Number>::values(bits);
        const __m256 even = _mm256_add_ps(
            _mm256_mul_ps(_mm256_sub_ps(value.even, lanes.lo.even), guess.inverse.even),
            guess.bias.even);
        const __m256 odd = _mm256_add_ps(
            _mm256_mul_ps(_mm256_sub_ps(value.odd, lanes.lo.odd), guess.inverse.odd),
            guess.bias.odd);
        __m256i codes = join_low(_mm256_cvttps_epi32(even), _mm256_cvttps_epi32(odd));
        Bins bins;
        for (;;) {  // The guess is a rounding error away from the bin at most.
            bins = bins_of<Number>(codes, lanes, g.offset);
            const __m256i above = _mm256_cmpgt_epi16(ordinals, bins.last);
            const __m256i reached = _mm256_cmpgt_epi16(ordinals, bins.before);
            const __m256i inside = _mm256_andnot_si256(above, reached);
            if (__builtin_expect(_mm256_movemask_epi8(inside) == -1, 1)) break;
            if (outside(ordinals, lanes)) {  // It has no bin: the steps would not end.
                left = true;
                break;
            }
            const __m256i below = _mm256_xor_si256(reached, _mm256_set1_epi32(-1));
            codes = _mm256_add_epi16(_mm256_sub_epi16(codes, above), below);
        }
        const __m256i packed = _mm256_packus_epi16(codes, codes);
        const __m256i joined = _mm256_permute4x64_epi64(packed, 0x08);
        _mm_store_si128(reinterpret_cast<__m128i*>(stage.codes + e),
                        _mm256_castsi256_si128(joined));
        const __m256i rank = _mm256_sub_epi16(ordinals, bins.before);
        store256(stage.rank + e / 4, _mm256_sub_epi16(rank, _mm256_set1_epi16(1)));
        store256(stage.mask + e / 4, smear(room_of(bins)));
    }

    void code(uint32_t begin, uint32_t count) {
        for_stretches(spec.width, begin, count, [&](Place place, uint32_t at, uint32_t stretch) {
            if (place.token < g.sinks) {
                memset(stage.codes + at, 0, stretch);
                memset(stage.mask + at / 4, 0, 2 * stretch);
                memset(stage.rank + at / 4, 0, 2 * stretch);
                return;
            }
            walk.enter_row(place.token);
            const uint8_t* from_row =
                source.values + 2 * (place.token * source.stride + place.channel);
            walk.for_groups(place, stretch, [&](uint32_t from, uint32_t part, const Sixteen* unit,
                                            uint32_t group) {
                Lanes lanes = load_lanes<kPerChannel>(*unit, group);
                Guess guess = load_guess(*unit, group);
                for (uint32_t i = 0; i < part; i += 16) {
                    if (kPerChannel) {
                        lanes = load_lanes<true>(*unit, 0);
                        guess = load_guess(*unit++, 0);
                    }
                    const __m256i bits = load256_once(from_row + 2 * (from + i));
                    sixteen(bits, lanes, guess, at + from + i);
                }
            });
        });
    }

    // Write the ranks of a block to `bits`; returns how many bits there are.
    uint32_t gather(uint32_t count, uint8_t* bits) const {
        Writer writer{bits};
        for (uint32_t i = 0; i < count / 4; i += 2) {
            const uint64_t mask0 = stage.mask[i], mask1 = stage.mask[i + 1];
            const uint64_t rank0 = _pext_u64(stage.rank[i], mask0);
            const uint64_t rank1 = _pext_u64(stage.rank[i + 1], mask1);
            const uint32_t size0 = static_cast<uint32_t>(_mm_popcnt_u64(mask0));
            const uint32_t size1 = static_cast<uint32_t>(_mm_popcnt_u64(mask1));
            if (__builtin_expect(size0 + size1 <= 56, 1)) {
                writer.put(rank0 | rank1 << size0, size0 + size1);
            } else {
                writer.put_long(rank0, size0);
                writer.put_long(rank1, size1);
            }
        }
        return static_cast<uint32_t>(writer.at - bits) * 8 + writer.held;
    }
};

template <class Number, bool kPerChannel>
int64_t encode(const kvd_spec& spec, const CellSource& source, const CellRoom& room) {
    const Geometry g = geometry_of(spec);
    const bool counted = kPerChannel
                             ? statistics_per_channel<Number>(spec, g, source, room.anchor)
                             : statistics_per_token<Number>(spec, g, source, room.anchor);
    if (!counted) return kRaw;
    const GroupsState state = groups_state<Number>(room.anchor, g.groups);
    if (!state.valid) return kRaw;
    if (state.tiny) return encode_cell_portable(spec, source, room);  // It divides instead.
    uint8_t* at = room.anchor + g.metadata;
    for (uint32_t t = 0; t < g.sinks; t++, at += 2 * spec.width) {
        memcpy(at, source.values + 2 * (t * source.stride), 2 * spec.width);
    }
    uint8_t* planes[kPlanes];
    for (uint32_t rank = 0; rank < kPlanes; rank++) {
        planes[kPlanes - 1 - rank] =
            rank < spec.anchor_planes ? at + rank * g.plane
                                      : room.residual + (rank - spec.anchor_planes) * g.plane;
    }
    Encoder<Number, kPerChannel> encoder(spec, g, source, room.anchor);
    uint64_t exact = 2 * static_cast<uint64_t>(g.blocks);
    if (exact > room.exact_max) return kRaw;
    for (uint32_t b = 0; b < g.blocks; b++) {
        const uint32_t begin = b * kBlock;
        const uint32_t count = g.elements - begin < kBlock ? g.elements - begin : kBlock;
        encoder.walk.enter_block(begin, count);
        encoder.code(begin, count);
        if (encoder.left) return kRaw;
        split_block(encoder.stage.codes, count, planes, begin / 8);
        uint8_t ranks[kBlockBytesMax + kSlack];  // The writer stores words past what it keeps.
        const uint32_t bits = encoder.gather(count, ranks), bytes = (bits + 7) / 8;
        if (exact + bytes > room.exact_max) return kRaw;
        store16(room.exact + 2 * b, static_cast<uint16_t>(bits));
        memcpy(room.exact + exact, ranks, bytes);
        exact += bytes;
    }
    return static_cast<int64_t>(exact);
}

}  // namespace

int64_t encode_cell_avx2(const kvd_spec& spec, const CellSource& source, const CellRoom& room) {
    const bool per_channel = spec.grouping == KVD_PER_CHANNEL;
    if (spec.kind == KVD_BF16) {
        return per_channel ? encode<Bf16, true>(spec, source, room)
                           : encode<Bf16, false>(spec, source, room);
    }
    return per_channel ? encode<Fp16, true>(spec, source, room)
                       : encode<Fp16, false>(spec, source, room);
}
