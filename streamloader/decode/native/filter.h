/* Weights of an antialiased bilinear resize along one axis. */
#ifndef STREAMLOADER_FILTER_H
#define STREAMLOADER_FILTER_H

#include <stdint.h>

/* Weights are fixed point with 15 bits behind the point: 32768 is one. */
#define SL_WEIGHT_BITS 15
#define SL_WEIGHT_ONE (1 << SL_WEIGHT_BITS)
/* Taps are stored in whole groups, the rest of the last one with weight zero. */
#define SL_TAP_GROUP 4
/* Outputs are stored in whole groups too, the rest of the last one weightless. */
#define SL_OUTPUT_GROUP 4

/* What part of the input to resize to how many outputs. */
typedef struct {
    double begin; /* edges of the part, in input pixels from the input's edge */
    double end;
    int32_t input; /* pixels that exist */
    int32_t output;
    int32_t mirrored; /* the first output comes from the part's end */
} sl_axis;

typedef struct {
    int32_t output;
    int32_t taps;     /* stored for each output: a multiple of SL_TAP_GROUP */
    int32_t used;     /* most taps that any output needs */
    int32_t first;    /* input pixels [first, last) have a weight */
    int32_t last;
    int32_t *starts;  /* [output] first input pixel of each */
    int16_t *weights; /* [output][taps] */
} sl_filter;

/* Bytes of memory that the filter of an axis needs. */
int64_t sl_filter_bytes(const sl_axis *axis);

/* Fills the filter in memory of sl_filter_bytes, aligned to 64. */
void sl_filter_build(sl_filter *filter, const sl_axis *axis, void *memory);

#endif
