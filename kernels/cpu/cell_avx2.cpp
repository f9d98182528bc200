// The offset code sixteen elements at a time; called only on machines that have AVX2 and BMI2.
#include "cell.h"

bool avx2_takes(const kvd_spec&) { return false; }

int64_t encode_cell_avx2(const kvd_spec& spec, const CellSource& source, const CellRoom& room) {
    return encode_cell_portable(spec, source, room);
}

bool decode_cell_avx2(const kvd_spec& spec, const CellStrings& strings, const CellTarget& target,
                      uint32_t planes) {
    return decode_cell_portable(spec, strings, target, planes);
}
