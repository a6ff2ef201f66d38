/* Reads runs of records from open files, and has each checked and its rows written, in one call:
 * Python's lock is taken once for all of them.
 */
#ifndef SL_PIECES_H
#define SL_PIECES_H

#include <stdint.h>

/* Records first to first + count of a shard.
 * fd, offset, nbytes: where their bytes are; at: where in memory they go, their rows to `rows`.
 * source: the sl_row_source of the shard.
 * Set by the call are `outcome`, 1 if nothing is wrong with them, and how long the read took. */
typedef struct {
    int64_t fd;
    int64_t offset;
    int64_t nbytes;
    int64_t at;
    uint64_t source;
    int64_t first;
    int64_t count;
    int64_t rows;
    int64_t outcome;
    int64_t read_ns;
} sl_part;

/* Goes through num_parts parts, until *stop is not 0. `take` is the address of sl_take_records. A
 * part that cannot be read or is not as its shard says has the outcome 0; nothing is written beyond
 * the `size` bytes of memory. */
void sl_bring_parts(sl_part *parts, int64_t num_parts, uint8_t *memory, int64_t size,
                    int64_t stride, int32_t check, uint64_t take, const int32_t *stop);

#endif
