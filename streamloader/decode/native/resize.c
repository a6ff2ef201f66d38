/* The passes in plain C, which compilers turn into NEON on aarch64, and the choice of passes. */
#include "resize.h"

#include <string.h>

enum { DOWN_BLOCK = 256 };

static void across_row(const sl_filter *filter, const uint8_t *row, uint8_t *output)
{
    for (int32_t i = 0; i < filter->output; i++) {
        const uint8_t *pixel = row + 3 * (int64_t)filter->starts[i];
        const int16_t *weights = filter->weights + (int64_t)i * filter->taps;
        int32_t red = 0, green = 0, blue = 0;
        for (int32_t tap = 0; tap < filter->used; tap++) {
            red += weights[tap] * pixel[3 * tap];
            green += weights[tap] * pixel[3 * tap + 1];
            blue += weights[tap] * pixel[3 * tap + 2];
        }
        output[3 * i] = sl_rounded(red);
        output[3 * i + 1] = sl_rounded(green);
        output[3 * i + 2] = sl_rounded(blue);
    }
}

static void across_plain(const sl_filter *filter, const uint8_t *const *rows, int32_t num_rows,
                         uint8_t *const *outputs)
{
    for (int32_t row = 0; row < num_rows; row++) {
        across_row(filter, rows[row], outputs[row]);
    }
}

static void down_plain(const uint8_t *const *rows, const int16_t *weights, int32_t taps,
                       uint8_t *output, int32_t num_bytes)
{
    for (int32_t begin = 0; begin < num_bytes; begin += DOWN_BLOCK) {
        int32_t count = num_bytes - begin < DOWN_BLOCK ? num_bytes - begin : DOWN_BLOCK;
        int32_t sums[DOWN_BLOCK] = {0};
        for (int32_t tap = 0; tap < taps; tap++) {
            const uint8_t *restrict row = rows[tap] + begin;
            int32_t weight = weights[tap];
            for (int32_t i = 0; i < count; i++) {
                sums[i] += weight * row[i];
            }
        }
        for (int32_t i = 0; i < count; i++) {
            output[begin + i] = sl_rounded(sums[i]);
        }
    }
}

const sl_passes sl_passes_plain = {"plain", across_plain, down_plain};

const sl_passes *sl_passes_named(const char *name)
{
    const sl_passes *known[4];
    int count = 0;
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
        known[count++] = &sl_passes_avx512;
    }
    if (__builtin_cpu_supports("avx2")) {
        known[count++] = &sl_passes_avx2;
    }
    if (__builtin_cpu_supports("sse4.1")) {
        known[count++] = &sl_passes_sse41;
    }
#endif
    known[count++] = &sl_passes_plain;
    for (int i = 0; i < count; i++) {
        if (name == NULL || strcmp(name, known[i]->name) == 0) {
            return known[i];
        }
    }
    return NULL;
}
