#include "filter.h"

#include <math.h>
#include <string.h>

/* Rounding up for positive numbers, without a call of the C library. */
static int32_t ceil_of(double value)
{
    int32_t whole = (int32_t)value;
    return whole + (value > whole);
}

static int32_t up_to_multiple(int32_t value, int32_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Half the width of the triangle, in input pixels: one pixel at least, the antialiasing. */
static double support_of(const sl_axis *axis)
{
    double scale = (axis->end - axis->begin) / axis->output;
    return scale < 1.0 ? 1.0 : scale;
}

static int32_t stored_taps(const sl_axis *axis)
{
    /* So many pixel centres at most lie strictly within a triangle of width 2 * support. */
    return up_to_multiple(ceil_of(2.0 * support_of(axis)), SL_TAP_GROUP);
}

int64_t sl_filter_bytes(const sl_axis *axis)
{
    int64_t output = up_to_multiple(axis->output, SL_OUTPUT_GROUP);
    int64_t taps = stored_taps(axis);
    return taps * (int64_t)sizeof(double) +
           output * (taps * (int64_t)sizeof(int16_t) + (int64_t)sizeof(int32_t));
}

/* What is the same for all outputs of an axis. */
typedef struct {
    double support; /* half the triangle's width, in input pixels */
    double slope;
    int32_t input;
    int32_t pixels; /* so many at most lie strictly within the triangle */
} triangle;

/*
 * The triangle around one output's centre, as Pillow's precompute_coeffs lays it; returns the
 * first pixel. The number of turns is the same for all outputs: no branch is guessed wrong.
 */
static int32_t exact_weights(const triangle *shape, double centre, double *exact, double *total)
{
    double edge = centre - shape->support + 0.5;
    int32_t first = edge < 0.0 ? 0 : (int32_t)edge;
    first += (first - centre + 0.5) * shape->slope <= -1.0;
    double sum = 0.0;
    for (int32_t i = 0; i < shape->pixels; i++) {
        double distance = fabs((first + i - centre + 0.5) * shape->slope);
        double weight = distance < 1.0 ? 1.0 - distance : 0.0;
        exact[i] = first + i < shape->input ? weight : 0.0;
        sum += exact[i];
    }
    *total = sum;
    return first;
}

/*
 * Sums are rounded, not weights: they add up to one exactly, so a flat area stays as it is, and
 * thousands of taps too small for the fixed point still share it out evenly.
 */
static void round_weights(int16_t *fixed, const double *exact, double total, int32_t count)
{
    double unit = SL_WEIGHT_ONE / total, sum = 0.5;
    int32_t before = 0;
    for (int32_t i = 0; i < count; i++) {
        sum += exact[i] * unit;
        int32_t now = (int32_t)sum;
        /* One itself does not fit; 32767 / 32768 gives the same byte. */
        fixed[i] = (int16_t)(now - before > INT16_MAX ? INT16_MAX : now - before);
        before = now;
    }
}

void sl_filter_build(sl_filter *filter, const sl_axis *axis, void *memory)
{
    double scale = (axis->end - axis->begin) / axis->output, support = support_of(axis);
    triangle shape = {support, 1.0 / support, axis->input, ceil_of(2.0 * support)};
    int32_t taps = stored_taps(axis), padded = up_to_multiple(axis->output, SL_OUTPUT_GROUP);
    double *exact = memory, total;
    memset(memory, 0, (size_t)sl_filter_bytes(axis));
    int16_t *weights = (int16_t *)(exact + taps);
    int32_t *starts = (int32_t *)(weights + (int64_t)padded * taps);
    for (int32_t i = 0; i < axis->output; i++) {
        int32_t place = axis->mirrored ? axis->output - 1 - i : i;
        starts[place] = exact_weights(&shape, axis->begin + (i + 0.5) * scale, exact, &total);
        round_weights(weights + (int64_t)place * taps, exact, total, shape.pixels);
    }
    int32_t last = ceil_of(axis->end - 0.5 * scale + support - 0.5);
    *filter = (sl_filter){
        .output = axis->output,
        .taps = taps,
        .used = shape.pixels,
        .first = starts[axis->mirrored ? axis->output - 1 : 0],
        .last = last < axis->input ? last : axis->input,
        .starts = starts,
        .weights = weights,
    };
}
