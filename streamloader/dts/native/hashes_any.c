/* Hashes for every processor, and the choice of the best ones. */
#if __has_include(<xxhash.h>)
#define SL_CHECK sl_check_hashes_any
#define SL_HASH sl_hash_ranges_any
#define SL_TAKE sl_take_records_any
#include "hashes.h"

int sl_has_xxh3(void) { return 1; }

#ifdef __x86_64__
int64_t sl_check_hashes_avx2(const uint8_t *data, int64_t size, int64_t count,
                             const int64_t *starts, const int64_t *ends, const uint64_t *expected,
                             uint8_t *is_bad);
int64_t sl_hash_ranges_avx2(const uint8_t *data, int64_t size, int64_t count,
                            const int64_t *starts, const int64_t *ends, uint64_t *hashes);
int32_t sl_take_records_avx2(const sl_row_source *source, int64_t first, int64_t count,
                             uint8_t *memory, int64_t size, int64_t at, int64_t rows,
                             int64_t stride, int32_t check);
#endif

int64_t sl_check_hashes(const uint8_t *data, int64_t size, int64_t count, const int64_t *starts,
                        const int64_t *ends, const uint64_t *expected, uint8_t *is_bad) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) {
        return sl_check_hashes_avx2(data, size, count, starts, ends, expected, is_bad);
    }
#endif
    return sl_check_hashes_any(data, size, count, starts, ends, expected, is_bad);
}

int64_t sl_hash_ranges(const uint8_t *data, int64_t size, int64_t count, const int64_t *starts,
                       const int64_t *ends, uint64_t *hashes) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) {
        return sl_hash_ranges_avx2(data, size, count, starts, ends, hashes);
    }
#endif
    return sl_hash_ranges_any(data, size, count, starts, ends, hashes);
}

int32_t sl_take_records(const sl_row_source *source, int64_t first, int64_t count, uint8_t *memory,
                        int64_t size, int64_t at, int64_t rows, int64_t stride, int32_t check) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) {
        return sl_take_records_avx2(source, first, count, memory, size, at, rows, stride, check);
    }
#endif
    return sl_take_records_any(source, first, count, memory, size, at, rows, stride, check);
}

#else
#include "records.h"

int sl_has_xxh3(void) { return 0; }

int64_t sl_check_hashes(const uint8_t *data, int64_t size, int64_t count, const int64_t *starts,
                        const int64_t *ends, const uint64_t *expected, uint8_t *is_bad) {
    (void)data, (void)size, (void)starts, (void)ends, (void)expected, (void)is_bad;
    return count;
}

int64_t sl_hash_ranges(const uint8_t *data, int64_t size, int64_t count, const int64_t *starts,
                       const int64_t *ends, uint64_t *hashes) {
    (void)data, (void)size, (void)count, (void)starts, (void)ends, (void)hashes;
    return -1;
}

int32_t sl_take_records(const sl_row_source *source, int64_t first, int64_t count, uint8_t *memory,
                        int64_t size, int64_t at, int64_t rows, int64_t stride, int32_t check) {
    (void)source, (void)first, (void)count, (void)memory, (void)size, (void)at, (void)rows;
    (void)stride, (void)check;
    return -1;
}
#endif
