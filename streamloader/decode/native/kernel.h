/*
 * JPEG pictures to resized rows of a batch, a worker's whole share in one call.
 *
 * Lines without a '#' are read by the Python binding too: declarations only.
 */
#ifndef STREAMLOADER_KERNEL_H
#define STREAMLOADER_KERNEL_H

#include <stdint.h>

#define SL_MESSAGE_BYTES 240

enum sl_status {
    SL_DECODED = 0,
    SL_NOT_STARTED = 1, /* aborted before it; its row is untouched */
    SL_NOT_JPEG = 2,    /* other bytes; its row is untouched */
    SL_FAULT = 3,       /* a bad picture, told in its message; its row is zero */
    SL_NO_MEMORY = 4    /* the machine is short of memory; its row is zero */
};

enum sl_step_kind {
    SL_RANDOM_RESIZED_CROP = 0,
    SL_RESIZE_SHORT_SIDE = 1, /* size is height; width follows the picture's proportions */
    SL_RESIZE = 2,
    SL_CENTER_CROP = 3
};

/* One transform step; the fields after width are for the random crop alone. */
typedef struct {
    int32_t kind;
    int32_t height;
    int32_t width;
    int32_t exp_halvings; /* how often a logarithm is halved until it is below 1/8 */
    double scale[2];      /* of the area */
    double ratio[2];      /* width by height */
    double log_ratio[2];
    double flip; /* probability */
    uint64_t key; /* of the step's random numbers */
} sl_step;

/* What to do to each picture. */
typedef struct {
    const sl_step *steps;
    int32_t num_steps;
    int32_t height; /* of each row of the batch, in pixels */
    int32_t width;
    int32_t element_bytes; /* of a channel value in the batch: 1, 2 or 4 */
    const void *table;     /* [3][256] of element_bytes each: a value's stand-in; NULL for uint8 */
    int64_t max_pixels;
    int32_t max_scans;
} sl_task;

/* Where a picture is cut: edges in pixels of the stored picture, and the mirror. */
typedef struct {
    double x0;
    double y0;
    double x1;
    double y1;
    int32_t flip;
} sl_box;

/* What was done to a picture; its width is zero if its header was refused or never read. */
typedef struct {
    int32_t width; /* of the stored picture */
    int32_t height;
    sl_box box;
} sl_crop;

/* n pictures and the rows they belong to; arrays have n elements. */
typedef struct {
    int64_t count;
    const uint8_t *data;
    const int64_t *offsets; /* of each picture in data */
    const int64_t *lengths;
    const int64_t *samples; /* numbers in the data set: they key the random crops */
    const int64_t *rows;
    uint8_t *out;          /* row 0 of the batch: height x width x 3, C order */
    int64_t row_stride;    /* bytes from row to row */
    const int32_t *abort;  /* looked at before each picture; may be NULL */
    int32_t *status;       /* enum sl_status */
    char *messages;        /* n x SL_MESSAGE_BYTES */
    sl_crop *crops;        /* may be NULL */
} sl_share;

/* n JPEGs that engines of a GPU might decode; arrays have n elements. */
typedef struct {
    int64_t count;
    const uint8_t *data;
    const int64_t *offsets; /* of each picture in data */
    const int64_t *lengths;
    const int64_t *samples; /* numbers in the data set: they key the random crops */
    const int64_t *widths;  /* that its header has to state */
    const int64_t *heights;
    const uint8_t *luma; /* sampling factors of the first component that it has to state */
    uint8_t *sound;      /* whether its header does, and has nothing odd */
    sl_box *boxes;       /* of the sound ones */
} sl_engine_share;

/* A thread's scratch memory; one thread at a time. */
typedef struct sl_decoder sl_decoder;

/* NULL if there is no memory. simd names the passes to use, NULL for the best of this processor. */
sl_decoder *sl_open(const char *simd);
void sl_close(sl_decoder *decoder);

/* Which passes a decoder uses: "plain", "sse4.1", "avx2", "avx512". */
const char *sl_simd(const sl_decoder *decoder);

/* The libjpeg this was built for. */
const char *sl_libjpeg(void);

/* Bytes of scratch that the decoder holds between calls. */
int64_t sl_scratch_bytes(const sl_decoder *decoder);

/* Decodes the share's pictures in order. */
void sl_decode_share(sl_decoder *decoder, const sl_task *task, const sl_share *share);

/* Reads a header and checks it against the task's limits; returns its enum sl_status. */
int32_t sl_read_size(sl_decoder *decoder, const sl_task *task, const uint8_t *data, int64_t length,
                     int32_t *width, int32_t *height, char *message);

/*
 * Decodes a picture as far as damage can be found, and keeps no pixels; returns its enum sl_status.
 * What sl_decode_share would say of all of it, this says in the same words.
 */
int32_t sl_check(sl_decoder *decoder, const sl_task *task, const uint8_t *data, int64_t length,
                 char *message);

/* The box that the steps cut from a picture of this size. */
sl_box sl_plan(const sl_step *steps, int32_t num_steps, int64_t width, int64_t height,
               int64_t sample);

/* Checks the headers of a share, and plans the boxes of the sound ones. */
void sl_plan_engine(const sl_step *steps, int32_t num_steps, const sl_engine_share *share);

#endif
