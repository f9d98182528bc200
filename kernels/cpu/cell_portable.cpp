// The offset code, element by element: for machines without a wide path, and for odd forms.
#include "cell.h"

namespace {

// Groups of the row at hand; per-channel ones are kept, as their divisions are dear.
template <class Number>
struct GroupCursor {
    const kvd_spec& spec;
    const Geometry& g;
    const uint8_t* metadata;
    Group kept[kChannelsKept];
    uint32_t kept_row;

    GroupCursor(const kvd_spec& spec_, const Geometry& g_, const uint8_t* metadata_)
        : spec(spec_), g(g_), metadata(metadata_), kept_row(UINT32_MAX) {}

    Group read(uint64_t index) const {
        const uint8_t* at = metadata + 4 * index;
        return group_of<Number>(g, load16(at), load16(at + 2));
    }

    void enter(uint32_t token) {
        const uint32_t row = spec.grouping == KVD_PER_CHANNEL ? token / spec.group : token;
        if (row == kept_row) return;
        kept_row = row;
        for (uint32_t i = 0; i < g.groups_per_row && i < kChannelsKept; i++) {
            kept[i] = read(static_cast<uint64_t>(row) * g.groups_per_row + i);
        }
    }

    Group at(uint32_t channel) const {
        const uint32_t i = spec.grouping == KVD_PER_CHANNEL ? channel : channel / spec.group;
        if (i < kChannelsKept) return kept[i];
        return read(static_cast<uint64_t>(kept_row) * g.groups_per_row + i);
    }
};

struct Bin {
    int32_t first, behind;
};

template <class Number>
int32_t edge(const Group& group, float offset, int32_t code) {
    const float product = (static_cast<float>(code) - offset) * group.step;
    return Number::ceil_ordinal(group.lo + product);
}

int32_t clip(int32_t value, int32_t lowest, int32_t highest) {
    const int32_t raised = value < lowest ? lowest : value;
    return raised > highest ? highest : raised;
}

template <class Number>
Bin bin_of(const Group& group, float offset, int32_t code) {
    const int32_t first = edge<Number>(group, offset, code);
    return {first < group.first ? group.first : first,
            clip(edge<Number>(group, offset, code + 1), group.first + 1, group.last + 1)};
}

uint32_t bit_length(uint32_t number) { return number ? 32 - __builtin_clz(number) : 0; }

template <class Number>
int32_t code_of(const Group& group, float offset, uint16_t bits) {
    if (group.first == group.last) return 0;
    const int32_t ordinal = ordinal_of(bits);
    int32_t code = static_cast<int32_t>((Number::value(bits) - group.lo) / group.step + offset);
    code = clip(code, 0, 255);
    while (code > 0 && clip(edge<Number>(group, offset, code), group.first, group.last + 1) >
                           ordinal) {
        code--;
    }
    while (code < 255 && clip(edge<Number>(group, offset, code + 1), group.first,
                              group.last + 1) <= ordinal) {
        code++;
    }
    return code;
}

// An 8 x 8 bit matrix, byte i bit j, to byte j bit i.
uint64_t transpose(uint64_t m) {
    uint64_t swapped = (m ^ (m >> 7)) & 0x00aa00aa00aa00aaull;
    m ^= swapped ^ (swapped << 7);
    swapped = (m ^ (m >> 14)) & 0x0000cccc0000ccccull;
    m ^= swapped ^ (swapped << 14);
    swapped = (m ^ (m >> 28)) & 0x00000000f0f0f0f0ull;
    return m ^ swapped ^ (swapped << 28);
}

struct BitWriter {
    uint8_t* at;
    uint64_t pending = 0;
    uint32_t held = 0, bits = 0;

    void put(uint32_t value, uint32_t width) {
        pending |= static_cast<uint64_t>(value) << held;
        held += width;
        bits += width;
        while (held >= 8) {
            *at++ = static_cast<uint8_t>(pending);
            pending >>= 8;
            held -= 8;
        }
    }

    void finish() {
        if (held) *at++ = static_cast<uint8_t>(pending);
    }
};

uint32_t take_bits(const uint8_t* data, uint32_t position, uint32_t width) {
    const uint8_t* at = data + position / 8;
    const uint32_t word = at[0] | at[1] << 8 | at[2] << 16;
    return (word >> position % 8) & ((1u << width) - 1);
}

// Write lo and hi of every group; false when an element that is no sink is not finite.
template <class Number>
bool write_statistics(const kvd_spec& spec, const Geometry& g, const CellSource& source,
                      uint8_t* metadata) {
    const bool per_channel = spec.grouping == KVD_PER_CHANNEL;
    const uint32_t tall = per_channel ? spec.group : 1, wide = per_channel ? 1 : spec.group;
    for (uint32_t token = 0; token < spec.tokens; token += tall) {
        const uint32_t token_end = spec.tokens - token < tall ? spec.tokens : token + tall;
        for (uint32_t channel = 0; channel < spec.width; channel += wide) {
            const uint32_t end = spec.width - channel < wide ? spec.width : channel + wide;
            int32_t first = INT32_MAX, last = INT32_MIN;
            for (uint32_t t = token < g.sinks ? g.sinks : token; t < token_end; t++) {
                const uint8_t* row = source.values + 2 * (t * source.stride);
                for (uint32_t c = channel; c < end; c++) {
                    const uint16_t bits = load16(row + 2 * c);
                    if ((bits & Number::infinity) == Number::infinity) return false;
                    const int32_t ordinal = ordinal_of(bits);
                    first = ordinal < first ? ordinal : first;
                    last = ordinal > last ? ordinal : last;
                }
            }
            if (first > last) first = last = 0;
            store16(metadata, pattern_of(first));
            store16(metadata + 2, pattern_of(last));
            metadata += 4;
        }
    }
    return true;
}

// Where plane i (7 is the most significant) of a cell begins.
template <class Byte>
Byte* plane_at(Byte* anchor_planes, Byte* residual, const kvd_spec& spec, const Geometry& g,
               uint32_t i) {
    const uint32_t rank = kPlanes - 1 - i;
    return rank < spec.anchor_planes ? anchor_planes + rank * g.plane
                                     : residual + (rank - spec.anchor_planes) * g.plane;
}

template <class Number>
struct Encoder {
    const kvd_spec& spec;
    const Geometry& g;
    const CellSource& source;
    GroupCursor<Number> groups;

    // Code the elements of one block; returns the bits of its ranks, or -1 when a value has left
    // its group since the statistics: it has no code.
    int32_t block(uint32_t begin, uint32_t count, uint8_t* codes, uint8_t* ranks) {
        uint32_t token = begin / spec.width, channel = begin % spec.width;
        BitWriter writer{ranks};
        groups.enter(token);
        for (uint32_t i = 0; i < count; i++) {
            codes[i] = 0;
            if (token >= g.sinks) {
                const uint16_t bits =
                    load16_once(source.values + 2 * (token * source.stride + channel));
                const int32_t ordinal = ordinal_of(bits);
                const Group group = groups.at(channel);
                if (ordinal < group.first || ordinal > group.last) return -1;
                const int32_t code = code_of<Number>(group, g.offset, bits);
                const Bin bin = bin_of<Number>(group, g.offset, code);
                codes[i] = static_cast<uint8_t>(code);
                writer.put(ordinal - bin.first, bit_length(bin.behind - bin.first - 1));
            }
            if (++channel == spec.width && ++token < spec.tokens) {
                channel = 0;
                groups.enter(token);
            }
        }
        writer.finish();
        return static_cast<int32_t>(writer.bits);
    }
};

template <class Number>
int64_t encode(const kvd_spec& spec, const CellSource& source, const CellRoom& room) {
    const Geometry g = geometry_of(spec);
    if (!write_statistics<Number>(spec, g, source, room.anchor)) return -1;
    if (!groups_valid<Number>(room.anchor, g.groups)) return -1;
    uint8_t* at = room.anchor + g.metadata;
    for (uint32_t t = 0; t < g.sinks; t++, at += 2 * spec.width) {
        memcpy(at, source.values + 2 * (t * source.stride), 2 * spec.width);
    }
    Encoder<Number> encoder{spec, g, source, {spec, g, room.anchor}};
    uint64_t exact = 2 * static_cast<uint64_t>(g.blocks);
    if (exact > room.exact_max) return -1;
    for (uint32_t b = 0; b < g.blocks; b++) {
        uint8_t codes[kBlock + 8], ranks[kBlockBytesMax + kSlack];
        const uint32_t begin = b * kBlock;
        const uint32_t count = g.elements - begin < kBlock ? g.elements - begin : kBlock;
        const int32_t bits = encoder.block(begin, count, codes, ranks);
        if (bits < 0) return -1;
        const uint32_t bytes = (static_cast<uint32_t>(bits) + 7) / 8;
        if (exact + bytes > room.exact_max) return -1;
        store16(room.exact + 2 * b, static_cast<uint16_t>(bits));
        memcpy(room.exact + exact, ranks, bytes);
        exact += bytes;
        memset(codes + count, 0, 8);
        for (uint32_t i = 0; i < count; i += 8) {
            uint64_t matrix;
            memcpy(&matrix, codes + i, 8);
            matrix = transpose(matrix);
            for (uint32_t p = 0; p < kPlanes; p++) {
                plane_at(at, room.residual, spec, g, p)[(begin + i) / 8] =
                    static_cast<uint8_t>(matrix >> 8 * p);
            }
        }
    }
    return static_cast<int64_t>(exact);
}

template <class Number>
struct Decoder {
    const kvd_spec& spec;
    const Geometry& g;
    const CellStrings& strings;
    const CellTarget& target;
    uint32_t planes;
    GroupCursor<Number> groups;

    void merge(uint32_t begin, uint32_t count, uint8_t* codes) const {
        const uint8_t* anchor_planes = strings.anchor + g.anchor - spec.anchor_planes * g.plane;
        const uint32_t known = planes < kPlanes ? planes : kPlanes;
        for (uint32_t i = 0; i < count; i += 8) {
            uint64_t matrix = 0;
            for (uint32_t p = kPlanes - known; p < kPlanes; p++) {
                const uint8_t* plane = plane_at(anchor_planes, strings.residual, spec, g, p);
                matrix |= static_cast<uint64_t>(plane[(begin + i) / 8]) << 8 * p;
            }
            matrix = transpose(matrix);
            memcpy(codes + i, &matrix, 8);
        }
    }

    uint16_t lossy(const Group& group, uint8_t code) const {
        const uint32_t missing = kPlanes - planes;
        const float middle = static_cast<float>(1 << missing) * 0.5f;
        const float t = static_cast<float>(code >> missing << missing) + middle;
        const float product = (t - g.offset) * group.step;
        float value = group.lo + product;
        value = value < group.lo ? group.lo : value;
        value = value > group.hi ? group.hi : value;
        return Number::nearest(value);
    }

    // Decode one block; `ranks` has kSlack bytes behind the longest block. False when malformed.
    bool block(uint32_t begin, uint32_t count, const uint8_t* ranks, uint32_t bits) {
        uint8_t codes[kBlock + 8];
        merge(begin, count, codes);
        uint32_t token = begin / spec.width, channel = begin % spec.width, position = 0;
        bool good = true;
        groups.enter(token);
        for (uint32_t i = 0; i < count; i++) {
            if (token >= g.sinks) {
                const Group group = groups.at(channel);
                uint16_t pattern;
                if (planes == kExact) {
                    const Bin bin = bin_of<Number>(group, g.offset, codes[i]);
                    const int32_t room = bin.behind - bin.first - 1;
                    const uint32_t width = room > 0 ? bit_length(room) : 0;
                    const int32_t ordinal = bin.first + take_bits(ranks, position, width);
                    position += width;
                    good &= ordinal < bin.behind;
                    pattern = pattern_of(ordinal);
                } else {
                    pattern = lossy(group, codes[i]);
                }
                store16(target.values + 2 * (token * target.stride + channel), pattern);
            }
            if (++channel == spec.width && ++token < spec.tokens) {
                channel = 0;
                groups.enter(token);
            }
        }
        return good && position == bits;
    }
};

template <class Number>
bool decode(const kvd_spec& spec, const CellStrings& strings, const CellTarget& target,
            uint32_t planes) {
    const Geometry g = geometry_of(spec);
    if (!groups_valid<Number>(strings.anchor, g.groups)) return false;
    const bool exact = planes == kExact;
    if (exact && !blocks_valid(strings.exact, strings.exact_bytes, g.blocks)) return false;
    const uint8_t* kept = strings.anchor + g.metadata;
    for (uint32_t t = 0; t < g.sinks; t++, kept += 2 * spec.width) {
        memcpy(target.values + 2 * (t * target.stride), kept, 2 * spec.width);
    }
    Decoder<Number> decoder{spec, g, strings, target, planes, {spec, g, strings.anchor}};
    uint64_t at = 2 * static_cast<uint64_t>(g.blocks);
    for (uint32_t b = 0; b < g.blocks; b++) {
        uint8_t ranks[kBlockBytesMax + kSlack] = {0};
        uint32_t bits = 0;
        if (exact) {
            bits = load16_once(strings.exact + 2 * b);
            const uint32_t bytes = (bits + 7) / 8;
            if (bits > 8 * kBlockBytesMax || bytes > strings.exact_bytes - at) return false;
            memcpy(ranks, strings.exact + at, bytes);
            at += bytes;
        }
        const uint32_t begin = b * kBlock;
        const uint32_t count = g.elements - begin < kBlock ? g.elements - begin : kBlock;
        if (!decoder.block(begin, count, ranks, bits)) return false;
    }
    return true;
}

}  // namespace

int64_t encode_cell_portable(const kvd_spec& spec, const CellSource& source, const CellRoom& room) {
    return spec.kind == KVD_BF16 ? encode<Bf16>(spec, source, room)
                                 : encode<Fp16>(spec, source, room);
}

bool decode_cell_portable(const kvd_spec& spec, const CellStrings& strings,
                          const CellTarget& target, uint32_t planes) {
    return spec.kind == KVD_BF16 ? decode<Bf16>(spec, strings, target, planes)
                                 : decode<Fp16>(spec, strings, target, planes);
}
