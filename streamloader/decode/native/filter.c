#include "filter.h"

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
        int32_t now = i == count - 1 ? SL_WEIGHT_ONE : (int32_t)sum;
        /* One itself does not fit; 32767 / 32768 gives the same byte. */
        fixed[i] = (int16_t)(now - before > INT16_MAX ? INT16_MAX : now - before);
        before = now;
    }
}

/* The triangle around one output's centre, as Pillow's precompute_coeffs lays it. */
static int32_t fill_output(const sl_axis *axis, double centre, double support, int32_t most,
                           int32_t *start, int16_t *weights, double *exact)
{
    double slope = 1.0 / support, total = 0.0;
    int32_t low = (int32_t)(centre - support + 0.5 < 0.0 ? 0.0 : centre - support + 0.5);
    int32_t high = (int32_t)(centre + support + 0.5);
    high = high > axis->input ? axis->input : high;
    int32_t count = 0;
    *start = low;
    /* One beyond the most can only have a weight that rounding made. */
    for (int32_t pixel = low; pixel < high; pixel++) {
        double distance = (pixel - centre + 0.5) * slope;
        double weight = 1.0 - (distance < 0.0 ? -distance : distance);
        if (weight > 0.0 && count < most) {
            exact[count++] = weight;
            total += weight;
        } else if (count == 0) {
            *start = pixel + 1;
        }
    }
    round_weights(weights, exact, total, count);
    return count;
}

void sl_filter_build(sl_filter *filter, const sl_axis *axis, void *memory)
{
    double scale = (axis->end - axis->begin) / axis->output, support = support_of(axis);
    int32_t padded = up_to_multiple(axis->output, SL_OUTPUT_GROUP);
    filter->output = axis->output;
    filter->taps = stored_taps(axis);
    double *exact = memory;
    filter->weights = (int16_t *)(exact + filter->taps);
    filter->starts = (int32_t *)(filter->weights + (int64_t)padded * filter->taps);
    memset(memory, 0, (size_t)sl_filter_bytes(axis));
    filter->first = axis->input;
    filter->last = 0;
    filter->used = 1;
    for (int32_t i = 0; i < axis->output; i++) {
        int32_t place = axis->mirrored ? axis->output - 1 - i : i;
        double centre = axis->begin + (i + 0.5) * scale;
        int32_t count =
            fill_output(axis, centre, support, filter->taps, &filter->starts[place],
                        filter->weights + (int64_t)place * filter->taps, exact);
        int32_t start = filter->starts[place];
        filter->first = start < filter->first ? start : filter->first;
        filter->last = start + count > filter->last ? start + count : filter->last;
        filter->used = count > filter->used ? count : filter->used;
    }
}
