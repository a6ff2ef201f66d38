/* Padding that must be zero, and copies of pieces of memory. */
#include <string.h>

#include "records.h"

int64_t sl_check_zeros(const uint8_t *data, int64_t size, int64_t count, const int64_t *starts,
                       const int64_t *ends, uint8_t *is_bad) {
    int64_t bad = 0;
    for (int64_t i = 0; i < count; i++) {
        if (starts[i] < 0 || ends[i] < starts[i] || ends[i] > size) {
            return -1;
        }
        uint8_t seen = 0;
        for (int64_t at = starts[i]; at < ends[i]; at++) {
            seen |= data[at];
        }
        is_bad[i] = seen != 0;
        bad += is_bad[i];
    }
    return bad;
}

int64_t sl_copy_rows(const uint8_t *memory, int64_t size, int64_t count, const int64_t *offsets,
                     int64_t nbytes, uint8_t *out, int64_t num_rows, const int64_t *rows,
                     int64_t stride) {
    /* Rows lie anywhere in a large memory: the next ones are fetched while one is copied. */
    enum { AHEAD = 8 };
    for (int64_t i = 0; i < count; i++) {
        int64_t row = rows ? rows[i] : i;
        if (offsets[i] < 0 || offsets[i] > size - nbytes || row < 0 || row >= num_rows) {
            return -1;
        }
        if (i + AHEAD < count) {
            __builtin_prefetch(memory + offsets[i + AHEAD]);
        }
        memcpy(out + row * stride, memory + offsets[i], (size_t)nbytes);
    }
    return 0;
}

int64_t sl_copy_values(const uint8_t *memory, int64_t size, int64_t count, const int64_t *offsets,
                       const int64_t *lengths, uint8_t *out, int64_t num_rows, const int64_t *rows,
                       int64_t stride) {
    for (int64_t i = 0; i < count; i++) {
        if (lengths[i] < 0 || lengths[i] > stride || offsets[i] < 0 ||
            offsets[i] > size - lengths[i] || rows[i] < 0 || rows[i] >= num_rows) {
            return -1;
        }
        memcpy(out + rows[i] * stride, memory + offsets[i], (size_t)lengths[i]);
    }
    return 0;
}
