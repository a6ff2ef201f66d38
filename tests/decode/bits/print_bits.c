/*
 * Prints what the kernel makes of JPEGs, a line for each: two processors must print the same.
 *
 *     print_bits FILE...
 *
 * A line has the file's name, then for each task the status, and a hash of the row and of the
 * crop. Every set of vector instructions of this processor must agree, or it ends with 1.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

enum { MAX_SETS = 4, NUM_TASKS = 4, SAMPLES = 3, LARGEST_SIDE = 320 };

static const char *const SETS[MAX_SETS] = {"plain", "sse4.1", "avx2", "avx512"};

static const sl_step STEPS[NUM_TASKS] = {
    {.kind = SL_RANDOM_RESIZED_CROP, .height = 224, .width = 224, .exp_halvings = 2,
     .scale = {0.08, 1.0}, .ratio = {0.75, 4.0 / 3.0},
     .log_ratio = {-0.2876820724517809, 0.28768207245178085}, .flip = 0.5, .key = 77},
    {.kind = SL_RANDOM_RESIZED_CROP, .height = 31, .width = 47, .exp_halvings = 3,
     .scale = {0.01, 1.0}, .ratio = {0.5, 2.0},
     .log_ratio = {-0.6931471805599453, 0.6931471805599453}, .flip = 0.5, .key = 78},
    {.kind = SL_CENTER_CROP, .height = 160, .width = 96},
    {.kind = SL_RESIZE, .height = LARGEST_SIDE, .width = 11},
};

/* FNV-1a. */
static uint64_t hash(uint64_t seed, const void *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        seed = (seed ^ ((const uint8_t *)bytes)[i]) * 0x100000001B3u;
    }
    return seed;
}

static uint8_t *read_file(const char *path, int64_t *length)
{
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = NULL;
    if (file != NULL && fseek(file, 0, SEEK_END) == 0 && (*length = ftell(file)) >= 0) {
        rewind(file);
        bytes = malloc((size_t)*length + 1);
    }
    if (bytes == NULL || fread(bytes, 1, (size_t)*length, file) != (size_t)*length) {
        perror(path);
        exit(2);
    }
    fclose(file);
    return bytes;
}

/* One picture by one task as several samples; returns the hash of all that came of it. */
static uint64_t decode(sl_decoder *decoder, const sl_step *step, const uint8_t *bytes,
                       int64_t length, int32_t *status)
{
    static uint8_t rows[SAMPLES][LARGEST_SIDE * LARGEST_SIDE * 3];
    static char messages[SAMPLES][SL_MESSAGE_BYTES];
    int64_t offsets[SAMPLES] = {0}, lengths[SAMPLES], numbers[SAMPLES];
    sl_crop crops[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        lengths[i] = length;
        numbers[i] = i;
    }
    memset(rows, 7, sizeof rows);
    sl_task task = {step, 1, step->height, step->width, 1, NULL, 1 << 26, 100};
    sl_share share = {SAMPLES, bytes, offsets, lengths, numbers, numbers, rows[0], sizeof rows[0],
                      NULL, status, messages[0], crops};
    sl_decode_share(decoder, &task, &share);
    uint64_t seen = hash(0xCBF29CE484222325u, rows, sizeof rows);
    for (int i = 0; i < SAMPLES; i++) {
        /* Field by field: there is padding between them. */
        const sl_crop *crop = &crops[i];
        seen = hash(seen, &crop->width, 2 * sizeof crop->width);
        seen = hash(seen, &crop->box, 4 * sizeof crop->box.x0);
        seen = hash(seen, &crop->box.flip, sizeof crop->box.flip);
    }
    return hash(seen, status, SAMPLES * sizeof *status);
}

int main(int argc, char **argv)
{
    sl_decoder *decoders[MAX_SETS];
    int count = 0;
    for (int i = 0; i < MAX_SETS; i++) {
        sl_decoder *decoder = sl_open(SETS[i]);
        if (decoder != NULL) {
            decoders[count++] = decoder;
            fprintf(stderr, "%s, %s\n", sl_libjpeg(), SETS[i]);
        }
    }
    for (int k = 1; k < argc; k++) {
        int64_t length = 0;
        uint8_t *bytes = read_file(argv[k], &length);
        printf("%s", argv[k]);
        for (int task = 0; task < NUM_TASKS; task++) {
            int32_t status[SAMPLES];
            uint64_t first = decode(decoders[0], &STEPS[task], bytes, length, status);
            printf(" %d:%016llx", status[0], (unsigned long long)first);
            for (int i = 1; i < count; i++) {
                if (decode(decoders[i], &STEPS[task], bytes, length, status) != first) {
                    fprintf(stderr, "%s: sets of vector instructions disagree\n", argv[k]);
                    return 1;
                }
            }
        }
        printf("\n");
        free(bytes);
    }
    for (int i = 0; i < count; i++) {
        sl_close(decoders[i]);
    }
    return 0;
}
