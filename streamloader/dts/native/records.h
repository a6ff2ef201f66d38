/* Checks and copies many records in one call, so that Python's lock is taken once for all of them;
 * and reads the headers of JPEGs.
 * Nothing is allocated, and nothing outside the `size` bytes given is looked at: where a range
 * would reach beyond them, -1 is returned.
 */
#ifndef SL_RECORDS_H
#define SL_RECORDS_H

#include <stdint.h>

/* 1 if this build has XXH3-64; sl_check_hashes and sl_hash_ranges may be called only then. */
int sl_has_xxh3(void);

/* Sets is_bad[i] to 1 where bytes starts[i] to ends[i] of data do not hash to expected[i], else to
 * 0; returns how many are bad. */
int64_t sl_check_hashes(const uint8_t *data, int64_t size, int64_t count, const int64_t *starts,
                        const int64_t *ends, const uint64_t *expected, uint8_t *is_bad);

/* Sets hashes[i] to that of bytes starts[i] to ends[i] of data; returns 0. */
int64_t sl_hash_ranges(const uint8_t *data, int64_t size, int64_t count, const int64_t *starts,
                       const int64_t *ends, uint64_t *hashes);

/* Sets is_bad[i] to 1 where bytes starts[i] to ends[i] of data are not all zero, else to 0; returns how many
 * are. */
int64_t sl_check_zeros(const uint8_t *data, int64_t size, int64_t count, const int64_t *starts,
                       const int64_t *ends, uint8_t *is_bad);

/* Copies nbytes from memory + offsets[i] to out + rows[i] * stride; rows may be NULL for 0, 1, ...
 * Every row is below num_rows. Returns 0. */
int64_t sl_copy_rows(const uint8_t *memory, int64_t size, int64_t count, const int64_t *offsets,
                     int64_t nbytes, uint8_t *out, int64_t num_rows, const int64_t *rows,
                     int64_t stride);

/* The same for pieces of lengths[i] bytes, none longer than stride, into rows[i]. */
int64_t sl_copy_values(const uint8_t *memory, int64_t size, int64_t count, const int64_t *offsets,
                       const int64_t *lengths, uint8_t *out, int64_t num_rows, const int64_t *rows,
                       int64_t stride);

/* What the header of a JPEG says; sampling as in picture_kind.py. */
typedef struct {
    int32_t width;
    int32_t height;
    int32_t progressive;
    int32_t components;
    int32_t sampling;
    int32_t orientation;
} sl_jpeg_header;

/* Reads the header of a JPEG, of which the first two bytes are not looked at. Returns 1; 0 where
 * something is wrong with it, and the header is of no use then. */
int32_t sl_read_jpeg_header(const uint8_t *data, int64_t size, sl_jpeg_header *header);

/* Sets width, height and kind, as in picture_kind.py, of each picture in bytes starts[i] to ends[i]
 * of data. Returns how many it did: it stops at the first that is no JPEG, or has something wrong
 * with its header. */
int64_t sl_read_jpeg_headers(const uint8_t *data, int64_t size, int64_t count,
                             const int64_t *starts, const int64_t *ends, uint32_t *widths,
                             uint32_t *heights, uint16_t *kinds);

/* One payload field of a shard's records: its lengths (NULL where all are of `fixed` bytes), its
 * hashes, and where in a row its offset goes; its length goes behind it. */
typedef struct {
    const uint32_t *lengths;
    int64_t fixed;
    const uint64_t *hashes;
    int64_t place;
} sl_row_field;

/* One column of a shard: its values of nbytes each, and where in a row they go. */
typedef struct {
    const uint8_t *values;
    int64_t nbytes;
    int64_t place;
} sl_row_column;

/* What a shard says of its records; each field starts at a multiple of `align` in its record. */
typedef struct {
    const uint64_t *offsets;
    int64_t num_samples;
    int64_t align;
    int64_t num_fields;
    const sl_row_field *fields;
    int64_t num_columns;
    const sl_row_column *columns;
} sl_row_source;

/* Writes the rows of records first to first + count, of which the first lies at `at` in memory, to
 * memory + rows, memory + rows + stride, ... With `check`, their hashes and the zeros between
 * fields are looked at too. Returns 1 if nothing is wrong, 0 if something is, and -1 where it would
 * reach beyond the memory or the shard. May be called only where sl_has_xxh3() is 1. */
int32_t sl_take_records(const sl_row_source *source, int64_t first, int64_t count, uint8_t *memory,
                        int64_t size, int64_t at, int64_t rows, int64_t stride, int32_t check);

#endif
