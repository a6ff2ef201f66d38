/* sl_check_hashes, sl_hash_ranges and sl_take_records for one set of vector instructions: a file that
 * includes this first says, as SL_CHECK, SL_HASH and SL_TAKE, what the functions are called. XXH3-64
 * is that of the xxHash library, whose header is the whole of it. */
#include <string.h>

#include "records.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

int64_t SL_HASH(const uint8_t *data, int64_t size, int64_t count, const int64_t *starts,
                const int64_t *ends, uint64_t *hashes) {
    for (int64_t i = 0; i < count; i++) {
        if (starts[i] < 0 || ends[i] < starts[i] || ends[i] > size) {
            return -1;
        }
        hashes[i] = XXH3_64bits(data + starts[i], (size_t)(ends[i] - starts[i]));
    }
    return 0;
}

int64_t SL_CHECK(const uint8_t *data, int64_t size, int64_t count, const int64_t *starts,
                 const int64_t *ends, const uint64_t *expected, uint8_t *is_bad) {
    int64_t bad = 0;
    for (int64_t i = 0; i < count; i++) {
        if (starts[i] < 0 || ends[i] < starts[i] || ends[i] > size) {
            return -1;
        }
        is_bad[i] = XXH3_64bits(data + starts[i], (size_t)(ends[i] - starts[i])) != expected[i];
        bad += is_bad[i];
    }
    return bad;
}

static int sl_all_zero(const uint8_t *data, int64_t start, int64_t end) {
    uint8_t seen = 0;
    for (int64_t at = start; at < end; at++) {
        seen |= data[at];
    }
    return seen == 0;
}

/* Writes the places of one record's fields, from `at` to `end` in memory; returns as SL_TAKE. */
static int32_t sl_take_fields(const sl_row_source *source, int64_t sample, const uint8_t *memory,
                              int64_t at, int64_t end, uint8_t *row, int32_t check) {
    int64_t used = at;
    int32_t good = 1;
    for (int64_t i = 0; i < source->num_fields; i++) {
        const sl_row_field *field = &source->fields[i];
        int64_t length = field->lengths ? field->lengths[sample] : field->fixed;
        int64_t start = at + (used - at + source->align - 1) / source->align * source->align;
        if (length < 0 || start > end || length > end - start) {
            return -1;
        }
        memcpy(row + field->place, &start, sizeof start);
        memcpy(row + field->place + sizeof start, &length, sizeof length);
        if (check) {
            good &= sl_all_zero(memory, used, start);
            good &= XXH3_64bits(memory + start, (size_t)length) == field->hashes[sample];
        }
        used = start + length;
    }
    if (check && source->num_fields) {
        good &= sl_all_zero(memory, used, end);
    }
    return good;
}

int32_t SL_TAKE(const sl_row_source *source, int64_t first, int64_t count, uint8_t *memory,
                int64_t size, int64_t at, int64_t rows, int64_t stride, int32_t check) {
    if (first < 0 || count < 0 || first > source->num_samples - count || at < 0 || rows < 0 ||
        stride <= 0 || rows > size || count > (size - rows) / stride) {
        return -1;
    }
    int32_t good = 1;
    for (int64_t i = 0; i < count; i++) {
        int64_t sample = first + i;
        int64_t start = at + (int64_t)(source->offsets[sample] - source->offsets[first]);
        int64_t end = at + (int64_t)(source->offsets[sample + 1] - source->offsets[first]);
        if (start < at || end < start || end > size) {
            return -1;
        }
        uint8_t *row = memory + rows + i * stride;
        int32_t taken = sl_take_fields(source, sample, memory, start, end, row, check);
        if (taken < 0) {
            return -1;
        }
        good &= taken;
        for (int64_t c = 0; c < source->num_columns; c++) {
            const sl_row_column *column = &source->columns[c];
            memcpy(row + column->place, column->values + sample * column->nbytes,
                   (size_t)column->nbytes);
        }
    }
    return good;
}
