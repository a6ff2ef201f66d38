/* sl_check_hashes and sl_hash_ranges for one set of vector instructions: a file that includes this first says, as
 * SL_CHECK and SL_HASH, what the functions are called. XXH3-64 is that of the xxHash library, whose header is the
 * whole of it. */
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
