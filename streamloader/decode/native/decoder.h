/* A thread's state, and how a picture is given up from anywhere below it. */
#ifndef STREAMLOADER_DECODER_H
#define STREAMLOADER_DECODER_H

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

#include "kernel.h"
#include "resize.h"

/* Memory that grows and is kept; grown memory is not initialised. */
typedef struct {
    void *bytes;
    size_t capacity;
} sl_buffer;

enum sl_buffer_use {
    SL_COLUMN_FILTER,
    SL_LINE_FILTER,
    SL_LINES,      /* scanlines as RGB */
    SL_CMYK_LINES, /* scanlines before their conversion */
    SL_RESIZED,    /* scanlines resized across */
    SL_POINTERS,
    SL_ONE_ROW,    /* a finished row before its table look-up */
    SL_NUM_BUFFERS
};

struct sl_decoder {
    /* One picture's; nothing of it survives the picture. */
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    int64_t picture_bytes;
    jmp_buf give_up;
    enum sl_status status;
    char message[SL_MESSAGE_BYTES];

    const sl_passes *passes;
    sl_buffer buffers[SL_NUM_BUFFERS];
};

/*
 * Makes decoder->jpeg ready to read the picture. libjpeg keeps tables from picture to picture, so
 * one without its own would be decoded with those of the one before: each gets a fresh object.
 */
void sl_begin_picture(sl_decoder *decoder, const uint8_t *data, int64_t length);
void sl_end_picture(sl_decoder *decoder);

/* Leaves for decoder->give_up with a status and a message. */
_Noreturn void sl_give_up(sl_decoder *decoder, enum sl_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Memory of that use, 64-byte aligned, at least num_bytes; gives up if there is none. */
void *sl_reserve(sl_decoder *decoder, enum sl_buffer_use use, int64_t num_bytes);

/* Gives the scratch memory back; it comes again as it is needed. */
void sl_release_scratch(sl_decoder *decoder);

/* Reads and checks the header. */
void sl_read_header(sl_decoder *decoder, const sl_task *task);

/* Decodes, crops and resizes the picture whose header was read, into row. */
void sl_read_pixels(sl_decoder *decoder, const sl_task *task, const sl_box *box, uint8_t *row);

/* Decodes the picture whose header was read, coarsely, and drops its pixels. */
void sl_drop_pixels(sl_decoder *decoder);

#endif
