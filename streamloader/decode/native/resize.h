/* The two passes of a separable resize over rows of interleaved RGB bytes. */
#ifndef STREAMLOADER_RESIZE_H
#define STREAMLOADER_RESIZE_H

#include <stdint.h>

#include "filter.h"

/* Bytes that a pass may read or write beyond the end of a row of pixels. */
#define SL_ROW_SLACK 32

/*
 * Rows of the input across: output pixel i of row r into outputs[r][3 * i].
 * filter->starts are relative to the rows' first pixel.
 */
typedef void sl_across(const sl_filter *filter, const uint8_t *const *rows, int32_t num_rows,
                       uint8_t *const *outputs);

/*
 * One output row down: the weighted sum of rows[0 .. taps), taps even. Writes num_bytes and no
 * more, and reads no more of the rows.
 */
typedef void sl_down(const uint8_t *const *rows, const int16_t *weights, int32_t taps,
                     uint8_t *output, int32_t num_bytes);

/* Every set of passes gives the same bits: sums are exact, and rounded once. */
typedef struct {
    const char *name;
    sl_across *across;
    sl_down *down;
} sl_passes;

extern const sl_passes sl_passes_plain;
#ifdef __x86_64__
extern const sl_passes sl_passes_sse41;
extern const sl_passes sl_passes_avx2;
extern const sl_passes sl_passes_avx512;
#endif

/* The passes of that name, or for NULL the best; NULL if this processor has them not. */
const sl_passes *sl_passes_named(const char *name);

static inline int32_t sl_up_to_multiple(int32_t value, int32_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static inline uint8_t sl_rounded(int32_t sum)
{
    return (uint8_t)((sum + SL_WEIGHT_ONE / 2) >> SL_WEIGHT_BITS);
}

#endif
