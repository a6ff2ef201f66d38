/* What a header must say before memory is taken for its pixels. */
#include "decoder.h"

#include <string.h>

enum { MARKER = 0xFF, END_OF_IMAGE = 0xD9, START_OF_SCAN = 0xDA };

/* How often 0xFF and this byte follow each other, counted up to enough. */
static int32_t count_marker(const uint8_t *data, size_t length, uint8_t marker, int32_t enough)
{
    int32_t found = 0;
    const uint8_t *end = data + length;
    while (found < enough && end - data >= 2) {
        data = memchr(data, MARKER, (size_t)(end - data - 1));
        if (data == NULL) {
            break;
        }
        found += data[1] == marker;
        data++;
    }
    return found;
}

/*
 * Whether an end marker comes after the first scan's header. Within a scan 0xFF is followed by
 * zero or a marker, so one that is found is one. Most files end with it, so look there first.
 */
static int is_complete(const struct jpeg_source_mgr *source)
{
    const uint8_t *data = source->next_input_byte;
    size_t length = source->bytes_in_buffer;
    if (length >= 2 && data[length - 2] == MARKER && data[length - 1] == END_OF_IMAGE) {
        return 1;
    }
    return count_marker(data, length, END_OF_IMAGE, 1) == 1;
}

static void check_kind(sl_decoder *decoder)
{
    const struct jpeg_decompress_struct *jpeg = &decoder->jpeg;
    if (jpeg->data_precision != 8) {
        sl_give_up(decoder, SL_FAULT, "JPEG with %d bits a sample, which cannot be decoded; "
                   "convert it to 8 bits", jpeg->data_precision);
    }
    /* A predictor where a sequential scan has the first of its 64 frequencies. */
    if (!jpeg->progressive_mode && jpeg->Ss > 0 && jpeg->Se == 0) {
        sl_give_up(decoder, SL_FAULT, "lossless JPEG, which cannot be decoded; convert it first");
    }
    if (jpeg->num_components != 1 && jpeg->num_components != 3 && jpeg->num_components != 4) {
        sl_give_up(decoder, SL_FAULT, "JPEG with %d colour components, which have no agreed "
                   "meaning; convert it to RGB", jpeg->num_components);
    }
}

static void check_size(sl_decoder *decoder, const sl_task *task)
{
    const struct jpeg_decompress_struct *jpeg = &decoder->jpeg;
    int64_t pixels = (int64_t)jpeg->image_width * jpeg->image_height;
    if (pixels > task->max_pixels) {
        sl_give_up(decoder, SL_FAULT, "JPEG claims %ux%u pixels, more than max_pixels %lld; raise "
                   "max_pixels if that is its true size", jpeg->image_width, jpeg->image_height,
                   (long long)task->max_pixels);
    }
}

static void check_scans(sl_decoder *decoder, const sl_task *task)
{
    if (!jpeg_has_multiple_scans(&decoder->jpeg)) {
        return;
    }
    /* The first scan's header was read. */
    int32_t later = count_marker(decoder->source.next_input_byte, decoder->source.bytes_in_buffer,
                                 START_OF_SCAN, task->max_scans);
    if (later >= task->max_scans) {
        sl_give_up(decoder, SL_FAULT, "JPEG with more than %d scans, each a pass over the picture; "
                   "convert it, or raise max_scans", task->max_scans);
    }
}

void sl_read_header(sl_decoder *decoder, const sl_task *task)
{
    if (jpeg_read_header(&decoder->jpeg, TRUE) != JPEG_HEADER_OK) {
        sl_give_up(decoder, SL_FAULT, "broken JPEG: no picture in it");
    }
    check_kind(decoder);
    check_size(decoder, task);
    if (!is_complete(&decoder->source)) {
        sl_give_up(decoder, SL_FAULT, "truncated JPEG: no end-of-image marker after its scan");
    }
    check_scans(decoder, task);
}
