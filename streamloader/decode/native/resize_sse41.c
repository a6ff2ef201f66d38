#ifdef __x86_64__

#include <immintrin.h>
#include <string.h>

#include "resize.h"

#define LANES 1
#define TARGET __attribute__((target("sse4.1")))
#define V_ZERO() _mm_setzero_si128()
#define V_SET32(value) _mm_set1_epi32(value)
#define V_REPEAT128(bytes) _mm_loadu_si128((const __m128i *)(bytes))
#define V_LOAD(bytes) _mm_loadu_si128((const __m128i *)(bytes))
#define V_STORE(bytes, value) _mm_storeu_si128((__m128i *)(bytes), value)
#define V_SHUFFLE8 _mm_shuffle_epi8
#define V_MADD16 _mm_madd_epi16
#define V_ADD32 _mm_add_epi32
#define V_SHIFT_RIGHT32 _mm_srai_epi32
#define V_PACK32 _mm_packs_epi32
#define V_PACK16 _mm_packus_epi16
#define V_UNPACK_LOW8 _mm_unpacklo_epi8
#define V_UNPACK_HIGH8 _mm_unpackhi_epi8

typedef __m128i vec;

TARGET static inline vec load_lanes(const uint8_t *const *rows, int64_t offset)
{
    return V_LOAD(rows[0] + offset);
}

TARGET static inline void store_lanes(uint8_t *const *outputs, int64_t offset, vec value)
{
    V_STORE(outputs[0] + offset, value);
}

#include "resize_lanes.h"

const sl_passes sl_passes_sse41 = {"sse4.1", across, down};

#else
typedef int sl_no_sse41;
#endif
