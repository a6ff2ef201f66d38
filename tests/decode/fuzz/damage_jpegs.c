/*
 * Decodes damaged copies of JPEGs with every set of vector instructions of this processor.
 *
 *     damage_jpegs ROUNDS SEED FILE...
 *
 * Each round flips bytes of a copy, overwrites a run of them or cuts it, and decodes it into a row
 * of exactly the right size. Built with sanitizers, any stray access ends the program; sets that
 * disagree by a bit or a verdict end it too, and so does a check that passes what does not decode. The seed of a round is printed on failure.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

enum { MAX_SETS = 4, MAX_PIXELS = 1 << 20, MAX_SCANS = 30 };

static const char *const SETS[MAX_SETS] = {"plain", "sse4.1", "avx2", "avx512"};

typedef struct {
    uint8_t *bytes;
    int64_t length;
} file_bytes;

static uint64_t state;

static uint32_t draw(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % below);
}

static file_bytes read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    file_bytes read = {NULL, 0};
    if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (read.length = ftell(file)) < 0) {
        perror(path);
        exit(2);
    }
    rewind(file);
    read.bytes = malloc((size_t)read.length + 1);
    if (read.bytes == NULL || fread(read.bytes, 1, (size_t)read.length, file) !=
                                  (size_t)read.length) {
        perror(path);
        exit(2);
    }
    fclose(file);
    return read;
}

/* A copy in memory of just its size, so that reading beyond it is seen. */
static file_bytes damage(file_bytes whole)
{
    int64_t length = draw(3) == 0 ? draw((uint32_t)whole.length + 1) : whole.length;
    file_bytes copy = {malloc((size_t)length + (length == 0)), length};
    memcpy(copy.bytes, whole.bytes, (size_t)length);
    for (uint32_t i = draw(4); i > 0 && length > 0; i--) {
        /* Every other one in the later half, where the tables are behind and the scan is. */
        int64_t first = draw(2) == 0 ? length / 2 : 0;
        copy.bytes[first + draw((uint32_t)(length - first))] = (uint8_t)draw(256);
    }
    if (draw(8) == 0 && length > 0) {
        int64_t begin = draw((uint32_t)length);
        int64_t run = 1 + draw(64);
        memset(copy.bytes + begin, (int)draw(256),
               (size_t)(begin + run > length ? length - begin : run));
    }
    if (draw(4) == 0 && length >= 4) {
        copy.bytes[length - 2] = 0xFF;
        copy.bytes[length - 1] = 0xD9;
    }
    return copy;
}

static sl_step draw_step(void)
{
    sl_step step = {
        .kind = draw(2) == 0 ? SL_RANDOM_RESIZED_CROP : SL_RESIZE,
        .height = 1 + (int32_t)draw(40),
        .width = 1 + (int32_t)draw(40),
        .exp_halvings = 3,
        .scale = {0.05, 1.0},
        .ratio = {0.5, 2.0},
        .log_ratio = {-0.693147, 0.693147},
        .flip = 0.5,
        .key = draw(1u << 30),
    };
    return step;
}

/* One row by one set of instructions; returns its status. */
static int32_t decode(sl_decoder *decoder, const sl_task *task, file_bytes picture, uint8_t *row,
                      sl_crop *crop)
{
    int64_t zero = 0;
    int32_t status = -1;
    char message[SL_MESSAGE_BYTES];
    sl_share share = {
        .count = 1,
        .data = picture.bytes,
        .offsets = &zero,
        .lengths = &picture.length,
        .samples = &zero,
        .rows = &zero,
        .out = row,
        .row_stride = 0,
        .status = &status,
        .messages = message,
        .crops = crop,
    };
    sl_decode_share(decoder, task, &share);
    return status;
}

/* Whether the check of a whole picture fits what its crop gave: it may find more, and never less. */
static int checked_well(sl_decoder *decoder, const sl_task *task, file_bytes picture,
                        int32_t status)
{
    char message[SL_MESSAGE_BYTES];
    int32_t checked = sl_check(decoder, task, picture.bytes, picture.length, message);
    return checked == status || (checked == SL_FAULT && status == SL_DECODED);
}

/* Decodes with each set; returns whether all agree. */
static int agree(sl_decoder *const *decoders, int count, file_bytes picture, int32_t *status)
{
    sl_step step = draw_step();
    size_t row_bytes = (size_t)step.height * (size_t)step.width * 3;
    sl_task task = {&step, 1, step.height, step.width, 1, NULL, MAX_PIXELS, MAX_SCANS};
    uint8_t *rows[MAX_SETS];
    sl_crop crops[MAX_SETS];
    int same = 1;
    for (int i = 0; i < count; i++) {
        rows[i] = malloc(row_bytes);
        memset(rows[i], 7, row_bytes);
        int32_t seen = decode(decoders[i], &task, picture, rows[i], &crops[i]);
        same = same && (i == 0 || (seen == *status && memcmp(rows[0], rows[i], row_bytes) == 0));
        same = same && crops[i].width == crops[0].width && crops[i].box.x1 == crops[0].box.x1;
        *status = seen;
    }
    same = same && checked_well(decoders[0], &task, picture, *status);
    for (int i = 0; i < count; i++) {
        free(rows[i]);
    }
    return same;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: %s ROUNDS SEED FILE...\n", argv[0]);
        return 2;
    }
    sl_decoder *decoders[MAX_SETS];
    int num_sets = 0;
    for (int i = 0; i < MAX_SETS; i++) {
        decoders[num_sets] = sl_open(SETS[i]);
        num_sets += decoders[num_sets] != NULL;
    }
    int num_files = argc - 3;
    file_bytes *files = calloc((size_t)num_files, sizeof *files);
    for (int i = 0; i < num_files; i++) {
        files[i] = read_file(argv[3 + i]);
    }
    long rounds = atol(argv[1]), ended[SL_NO_MEMORY + 1] = {0};
    uint64_t seed = strtoull(argv[2], NULL, 10);
    for (long round = 0; round < rounds; round++) {
        state = seed + (uint64_t)round * 0x9E3779B97F4A7C15u;
        file_bytes picture = damage(files[draw((uint32_t)num_files)]);
        int32_t status = -1;
        if (!agree(decoders, num_sets, picture, &status)) {
            fprintf(stderr, "round %ld of seed %s: vector widths or the check disagree\n", round, argv[2]);
            return 1;
        }
        ended[status]++;
        free(picture.bytes);
    }
    printf("%ld rounds on %d files by %d sets of instructions: %ld decoded, %ld refused, "
           "%ld no JPEG\n", rounds, num_files, num_sets, ended[SL_DECODED], ended[SL_FAULT],
           ended[SL_NOT_JPEG]);
    for (int i = 0; i < num_sets; i++) {
        sl_close(decoders[i]);
    }
    for (int i = 0; i < num_files; i++) {
        free(files[i].bytes);
    }
    free(files);
    return 0;
}
