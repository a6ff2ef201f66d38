#ifdef __x86_64__

#include <immintrin.h>
#include <string.h>

#include "resize.h"

#define LANES 4
#define TARGET __attribute__((target("avx512bw,avx512vl,prefer-vector-width=512")))
#define V_ZERO() _mm512_setzero_si512()
#define V_SET32(value) _mm512_set1_epi32(value)
#define V_REPEAT128(bytes) _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(bytes)))
#define V_LOAD(bytes) _mm512_loadu_si512(bytes)
#define V_STORE(bytes, value) _mm512_storeu_si512(bytes, value)
#define V_SHUFFLE8 _mm512_shuffle_epi8
#define V_MADD16 _mm512_madd_epi16
#define V_ADD32 _mm512_add_epi32
#define V_SHIFT_RIGHT32 _mm512_srai_epi32
#define V_PACK32 _mm512_packs_epi32
#define V_PACK16 _mm512_packus_epi16
#define V_UNPACK_LOW8 _mm512_unpacklo_epi8
#define V_UNPACK_HIGH8 _mm512_unpackhi_epi8

typedef __m512i vec;

TARGET static inline __m128i load_row(const uint8_t *row)
{
    return _mm_loadu_si128((const __m128i *)row);
}

TARGET static inline vec load_lanes(const uint8_t *const *rows, int64_t offset)
{
    vec lanes = _mm512_castsi128_si512(load_row(rows[0] + offset));
    lanes = _mm512_inserti32x4(lanes, load_row(rows[1] + offset), 1);
    lanes = _mm512_inserti32x4(lanes, load_row(rows[2] + offset), 2);
    return _mm512_inserti32x4(lanes, load_row(rows[3] + offset), 3);
}

TARGET static inline void store_lanes(uint8_t *const *outputs, int64_t offset, vec value)
{
    _mm_storeu_si128((__m128i *)(outputs[0] + offset), _mm512_castsi512_si128(value));
    _mm_storeu_si128((__m128i *)(outputs[1] + offset), _mm512_extracti32x4_epi32(value, 1));
    _mm_storeu_si128((__m128i *)(outputs[2] + offset), _mm512_extracti32x4_epi32(value, 2));
    _mm_storeu_si128((__m128i *)(outputs[3] + offset), _mm512_extracti32x4_epi32(value, 3));
}

#include "resize_lanes.h"

const sl_passes sl_passes_avx512 = {"avx512", across, down};

#else
typedef int sl_no_avx512;
#endif
