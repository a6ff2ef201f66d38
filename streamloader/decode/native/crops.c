/*
 * From transform steps to the box of one picture.
 *
 * The same operations in the same order as crops.py: additions, products, quotients and square
 * roots of doubles are exact by IEEE 754, so both give the same bits. Build without contraction
 * to fused multiply-adds.
 */
#include <math.h>

#include "kernel.h"

enum { NUM_TRIES = 10, DRAW_TOP = 20, DRAW_LEFT = 21, DRAW_FLIP = 22, DRAWS_PER_SAMPLE = 32 };
enum { TAYLOR_TERMS = 12 };

/* A box of the stored picture, and the pixel grid that the next step sees laid over it. */
typedef struct {
    sl_box box;
    int64_t width;
    int64_t height;
} grid;

static uint64_t mix64(uint64_t value)
{
    value += 0x9E3779B97F4A7C15u;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

/* Uniform in [0, 1), the order room's random_unit. */
static double draw_unit(const sl_step *step, int64_t sample, int draw)
{
    uint64_t counter = (uint64_t)sample * DRAWS_PER_SAMPLE + (uint64_t)draw;
    uint64_t bits = mix64(mix64(step->key + counter) + step->key * 0xD1342543DE82EF95u);
    return (double)(bits >> 11) * 0x1p-53;
}

/* e^value by a Taylor series of the value halved until it is small, squared back as often. */
static double exp_of(double value, int halvings)
{
    double small = value * ldexp(1.0, -halvings);
    double total = 1.0;
    for (int power = TAYLOR_TERMS; power > 0; power--) {
        total = 1.0 + total * small / power;
    }
    for (int i = 0; i < halvings; i++) {
        total = total * total;
    }
    return total;
}

static int64_t clip(double value, int64_t largest)
{
    return value < 1.0 ? 1 : value > (double)largest ? largest : (int64_t)value;
}

static void cut(grid *g, double left, double top, double width, double height)
{
    sl_box *box = &g->box;
    double scale_x = (box->x1 - box->x0) / (double)g->width;
    double scale_y = (box->y1 - box->y0) / (double)g->height;
    double x0 = box->x0, y0 = box->y0;
    /* The flip comes last, so a cut made after it is mirrored here. */
    if (box->flip) {
        left = (double)g->width - width - left;
    }
    /* Rounding must not push the box over the edge of the box it is cut from. */
    box->x0 = fmax(x0 + left * scale_x, x0);
    box->y0 = fmax(y0 + top * scale_y, y0);
    box->x1 = fmin(x0 + (left + width) * scale_x, box->x1);
    box->y1 = fmin(y0 + (top + height) * scale_y, box->y1);
}

static void resize_short_side(grid *g, int64_t size)
{
    int tall = g->width <= g->height;
    int64_t short_side = tall ? g->width : g->height;
    int64_t long_side = tall ? g->height : g->width;
    long_side = (int64_t)((double)(size * long_side) / (double)short_side);
    g->width = tall ? size : long_side;
    g->height = tall ? long_side : size;
}

static void center_crop(grid *g, const sl_step *step)
{
    double width = (double)g->width, height = (double)g->height;
    double grow = fmax(1.0, fmax(step->width / width, step->height / height));
    double part_width = step->width / grow, part_height = step->height / grow;
    double left = (width - part_width) / 2, top = (height - part_height) / 2;
    if (!(grow > 1.0)) {
        left = rint(left);
        top = rint(top);
    }
    cut(g, left, top, part_width, part_height);
}

/* The largest central part within the step's ratios. */
static void central_size(const grid *g, const sl_step *step, int64_t *width, int64_t *height)
{
    double own = (double)g->width / (double)g->height;
    *width = g->width;
    *height = g->height;
    if (own > step->ratio[1]) {
        *width = clip(rint((double)g->height * step->ratio[1]), g->width);
    }
    if (own < step->ratio[0]) {
        *height = clip(rint((double)g->width / step->ratio[0]), g->height);
    }
}

static int draw_size(const grid *g, const sl_step *step, int64_t sample, int64_t *width,
                     int64_t *height)
{
    double area = (double)(g->width * g->height);
    for (int attempt = 0; attempt < NUM_TRIES; attempt++) {
        double share = step->scale[0] +
                       draw_unit(step, sample, 2 * attempt) * (step->scale[1] - step->scale[0]);
        double log_ratio = step->log_ratio[0] + draw_unit(step, sample, 2 * attempt + 1) *
                                                    (step->log_ratio[1] - step->log_ratio[0]);
        double ratio = exp_of(log_ratio, step->exp_halvings);
        double tried_width = rint(sqrt(area * share * ratio));
        double tried_height = rint(sqrt(area * share / ratio));
        if (tried_width > 0 && tried_width <= (double)g->width && tried_height > 0 &&
            tried_height <= (double)g->height) {
            *width = (int64_t)tried_width;
            *height = (int64_t)tried_height;
            return 1;
        }
    }
    return 0;
}

static void random_resized_crop(grid *g, const sl_step *step, int64_t sample)
{
    int64_t width, height;
    central_size(g, step, &width, &height);
    int found = draw_size(g, step, sample, &width, &height);
    int64_t spare_x = g->width - width, spare_y = g->height - height;
    double left = (double)(spare_x / 2), top = (double)(spare_y / 2);
    if (found) {
        left = floor(draw_unit(step, sample, DRAW_LEFT) * (double)(spare_x + 1));
        top = floor(draw_unit(step, sample, DRAW_TOP) * (double)(spare_y + 1));
    }
    cut(g, left, top, (double)width, (double)height);
    g->box.flip ^= draw_unit(step, sample, DRAW_FLIP) < step->flip;
}

sl_box sl_plan(const sl_step *steps, int32_t num_steps, int64_t width, int64_t height,
               int64_t sample)
{
    grid g = {{0.0, 0.0, (double)width, (double)height, 0}, width, height};
    for (const sl_step *step = steps; step < steps + num_steps; step++) {
        if (step->kind == SL_RESIZE_SHORT_SIDE) {
            resize_short_side(&g, step->height);
            continue;
        }
        if (step->kind == SL_RANDOM_RESIZED_CROP) {
            random_resized_crop(&g, step, sample);
        } else if (step->kind == SL_CENTER_CROP) {
            center_crop(&g, step);
        }
        g.width = step->width;
        g.height = step->height;
    }
    return g.box;
}
