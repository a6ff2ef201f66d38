/* A worker's share of a batch: picture by picture, whatever becomes of each. */
#include <stdlib.h>
#include <string.h>

#include "decoder.h"

/* Scratch beyond this goes back after a share: one huge picture must not hold memory for good. */
enum { SCRATCH_KEPT_BYTES = 256 << 10 };

static int is_jpeg(const uint8_t *data, int64_t length)
{
    return length >= 3 && data[0] == 0xFF && data[1] == 0xD8 && data[2] == 0xFF;
}

static int is_aborted(const sl_share *share)
{
    return share->abort != NULL && __atomic_load_n(share->abort, __ATOMIC_RELAXED) != 0;
}

static void decode_jpeg(sl_decoder *decoder, const sl_task *task, const uint8_t *data,
                        int64_t length, int64_t sample, sl_crop *crop, uint8_t *row)
{
    if (setjmp(decoder->give_up) == 0) {
        decoder->status = SL_DECODED;
        sl_begin_picture(decoder, data, length);
        sl_read_header(decoder, task);
        crop->width = (int32_t)decoder->jpeg.image_width;
        crop->height = (int32_t)decoder->jpeg.image_height;
        crop->box = sl_plan(task->steps, task->num_steps, crop->width, crop->height, sample);
        sl_read_pixels(decoder, task, &crop->box, row);
    }
    sl_end_picture(decoder);
}

static void decode_place(sl_decoder *decoder, const sl_task *task, const sl_share *share,
                         int64_t place)
{
    const uint8_t *data = share->data + share->offsets[place];
    if (!is_jpeg(data, share->lengths[place])) {
        share->status[place] = SL_NOT_JPEG;
        return;
    }
    uint8_t *row = share->out + share->rows[place] * share->row_stride;
    sl_crop unread = {0}, *crop = share->crops == NULL ? &unread : &share->crops[place];
    decode_jpeg(decoder, task, data, share->lengths[place], share->samples[place], crop, row);
    share->status[place] = (int32_t)decoder->status;
    if (decoder->status != SL_DECODED) {
        memset(row, 0, (size_t)task->height * (size_t)task->width * 3 *
                           (size_t)task->element_bytes);
        memcpy(share->messages + place * SL_MESSAGE_BYTES, decoder->message, SL_MESSAGE_BYTES);
    }
}

static void release_large_scratch(sl_decoder *decoder)
{
    if (sl_scratch_bytes(decoder) > SCRATCH_KEPT_BYTES) {
        sl_release_scratch(decoder);
    }
}

void sl_decode_share(sl_decoder *decoder, const sl_task *task, const sl_share *share)
{
    for (int64_t place = 0; place < share->count; place++) {
        share->status[place] = SL_NOT_STARTED;
        if (share->crops != NULL) {
            share->crops[place] = (sl_crop){0};
        }
    }
    for (int64_t place = 0; place < share->count && !is_aborted(share); place++) {
        decode_place(decoder, task, share, place);
    }
    release_large_scratch(decoder);
}

int32_t sl_check(sl_decoder *decoder, const sl_task *task, const uint8_t *data, int64_t length,
                 char *message)
{
    if (!is_jpeg(data, length)) {
        return SL_NOT_JPEG;
    }
    if (setjmp(decoder->give_up) == 0) {
        decoder->status = SL_DECODED;
        sl_begin_picture(decoder, data, length);
        sl_read_header(decoder, task);
        sl_drop_pixels(decoder);
    } else {
        memcpy(message, decoder->message, SL_MESSAGE_BYTES);
    }
    sl_end_picture(decoder);
    release_large_scratch(decoder);
    return (int32_t)decoder->status;
}

int32_t sl_read_size(sl_decoder *decoder, const sl_task *task, const uint8_t *data, int64_t length,
                     int32_t *width, int32_t *height, char *message)
{
    if (!is_jpeg(data, length)) {
        return SL_NOT_JPEG;
    }
    if (setjmp(decoder->give_up) == 0) {
        decoder->status = SL_DECODED;
        sl_begin_picture(decoder, data, length);
        sl_read_header(decoder, task);
        *width = (int32_t)decoder->jpeg.image_width;
        *height = (int32_t)decoder->jpeg.image_height;
    } else {
        memcpy(message, decoder->message, SL_MESSAGE_BYTES);
    }
    sl_end_picture(decoder);
    return (int32_t)decoder->status;
}
