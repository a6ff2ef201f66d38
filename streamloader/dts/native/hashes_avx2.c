#if defined(__x86_64__) && __has_include(<xxhash.h>)
#pragma GCC target("avx2")
#define SL_CHECK sl_check_hashes_avx2
#define SL_HASH sl_hash_ranges_avx2
#define SL_TAKE sl_take_records_avx2
#include "hashes.h"
#endif
