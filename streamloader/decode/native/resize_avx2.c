#ifdef __x86_64__

#include <immintrin.h>
#include <string.h>

#include "resize.h"

#define LANES 2
#define TARGET __attribute__((target("avx2")))
#define V_ZERO() _mm256_setzero_si256()
#define V_SET32(value) _mm256_set1_epi32(value)
#define V_REPEAT128(bytes) _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(bytes)))
#define V_LOAD(bytes) _mm256_loadu_si256((const __m256i *)(bytes))
#define V_STORE(bytes, value) _mm256_storeu_si256((__m256i *)(bytes), value)
#define V_SHUFFLE8 _mm256_shuffle_epi8
#define V_MADD16 _mm256_madd_epi16
#define V_ADD32 _mm256_add_epi32
#define V_SHIFT_RIGHT32 _mm256_srai_epi32
#define V_PACK32 _mm256_packs_epi32
#define V_PACK16 _mm256_packus_epi16
#define V_UNPACK_LOW8 _mm256_unpacklo_epi8
#define V_UNPACK_HIGH8 _mm256_unpackhi_epi8

typedef __m256i vec;

TARGET static inline vec load_lanes(const uint8_t *const *rows, int64_t offset)
{
    return _mm256_loadu2_m128i((const __m128i *)(rows[1] + offset),
                               (const __m128i *)(rows[0] + offset));
}

TARGET static inline void store_lanes(uint8_t *const *outputs, int64_t offset, vec value)
{
    _mm256_storeu2_m128i((__m128i *)(outputs[1] + offset), (__m128i *)(outputs[0] + offset), value);
}

#include "resize_lanes.h"

const sl_passes sl_passes_avx2 = {"avx2", across, down};

#else
typedef int sl_no_avx2;
#endif
