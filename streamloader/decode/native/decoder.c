/* Lifetimes: the thread's decoder, its scratch memory, and libjpeg's object for one picture. */
#include "decoder.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <jerror.h>

enum { ALIGNMENT = 64 };
/* One common use in one spelling each. */
#define STRING_OF(name) #name
#define VALUE_OF(name) STRING_OF(name)

sl_decoder *sl_open(const char *simd)
{
    const sl_passes *passes = sl_passes_named(simd);
    sl_decoder *decoder = passes == NULL ? NULL : calloc(1, sizeof *decoder);
    if (decoder != NULL) {
        decoder->passes = passes;
    }
    return decoder;
}

void sl_release_scratch(sl_decoder *decoder)
{
    for (int use = 0; use < SL_NUM_BUFFERS; use++) {
        free(decoder->buffers[use].bytes);
        decoder->buffers[use] = (sl_buffer){NULL, 0};
    }
}

void sl_close(sl_decoder *decoder)
{
    if (decoder != NULL) {
        sl_release_scratch(decoder);
        free(decoder);
    }
}

const char *sl_simd(const sl_decoder *decoder)
{
    return decoder->passes->name;
}

const char *sl_libjpeg(void)
{
#ifdef LIBJPEG_TURBO_VERSION
    return "libjpeg-turbo " VALUE_OF(LIBJPEG_TURBO_VERSION);
#else
    return "libjpeg " VALUE_OF(JPEG_LIB_VERSION);
#endif
}

int64_t sl_scratch_bytes(const sl_decoder *decoder)
{
    int64_t total = 0;
    for (int use = 0; use < SL_NUM_BUFFERS; use++) {
        total += (int64_t)decoder->buffers[use].capacity;
    }
    return total;
}

void *sl_reserve(sl_decoder *decoder, enum sl_buffer_use use, int64_t num_bytes)
{
    sl_buffer *buffer = &decoder->buffers[use];
    size_t capacity = ((size_t)num_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (buffer->capacity < capacity) {
        free(buffer->bytes);
        buffer->bytes = aligned_alloc(ALIGNMENT, capacity);
        buffer->capacity = buffer->bytes == NULL ? 0 : capacity;
        if (buffer->bytes == NULL) {
            sl_give_up(decoder, SL_NO_MEMORY, "no memory for %zu bytes of scratch", capacity);
        }
    }
    return buffer->bytes;
}

void sl_give_up(sl_decoder *decoder, enum sl_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(decoder->message, sizeof decoder->message, format, arguments);
    va_end(arguments);
    decoder->status = status;
    longjmp(decoder->give_up, 1);
}

static void on_error(j_common_ptr jpeg)
{
    char text[JMSG_LENGTH_MAX];
    sl_decoder *decoder = jpeg->client_data;
    int code = jpeg->err->msg_code;
    jpeg->err->format_message(jpeg, text);
    if (code == JERR_OUT_OF_MEMORY || code == JERR_NO_BACKING_STORE) {
        sl_give_up(decoder, SL_NO_MEMORY, "libjpeg: %s", text);
    }
    if (code == JERR_EMPTY_IMAGE) {
        sl_give_up(decoder, SL_FAULT, "broken JPEG: its header claims no pixels");
    }
    sl_give_up(decoder, SL_FAULT, "broken JPEG: %s", text);
}

/* Negative levels are warnings: some are harmless, behind others the pixels are made up. */
static void on_message(j_common_ptr jpeg, int level)
{
    if (level >= 0) {
        return;
    }
    jpeg->err->num_warnings++;
    int code = jpeg->err->msg_code;
    int found = code == JWRN_HIT_MARKER    ? ((j_decompress_ptr)jpeg)->unread_marker
                : code == JWRN_MUST_RESYNC ? jpeg->err->msg_parm.i[0]
                                           : 0;
    if (found == JPEG_EOI) {
        sl_give_up(jpeg->client_data, SL_FAULT,
                   "truncated JPEG: its scan ends early and the rest would be grey");
    }
    if (code == JWRN_HIT_MARKER || code == JWRN_MUST_RESYNC || code == JWRN_HUFF_BAD_CODE ||
        code == JWRN_ARITH_BAD_CODE) {
        on_error(jpeg);
    }
}

static void on_output(j_common_ptr jpeg)
{
    (void)jpeg;
}

static void source_noop(j_decompress_ptr jpeg)
{
    (void)jpeg;
}

static boolean source_is_empty(j_decompress_ptr jpeg)
{
    sl_decoder *decoder = jpeg->client_data;
    if (jpeg->input_scan_number == 0) {
        sl_give_up(decoder, SL_FAULT, "truncated JPEG: its %lld bytes end before the first scan",
                   (long long)decoder->picture_bytes);
    }
    sl_give_up(decoder, SL_FAULT, "truncated JPEG: its %lld bytes end inside a scan",
               (long long)decoder->picture_bytes);
}

static void source_skip(j_decompress_ptr jpeg, long num_bytes)
{
    if (num_bytes <= 0) {
        return;
    }
    if ((size_t)num_bytes > jpeg->src->bytes_in_buffer) {
        source_is_empty(jpeg);
    }
    jpeg->src->next_input_byte += num_bytes;
    jpeg->src->bytes_in_buffer -= (size_t)num_bytes;
}

void sl_begin_picture(sl_decoder *decoder, const uint8_t *data, int64_t length)
{
    memset(&decoder->jpeg, 0, sizeof decoder->jpeg);
    decoder->jpeg.err = jpeg_std_error(&decoder->errors);
    decoder->jpeg.client_data = decoder;
    decoder->errors.error_exit = on_error;
    decoder->errors.emit_message = on_message;
    decoder->errors.output_message = on_output;
    decoder->picture_bytes = length;
    jpeg_create_decompress(&decoder->jpeg);
    decoder->source = (struct jpeg_source_mgr){
        .next_input_byte = data,
        .bytes_in_buffer = (size_t)length,
        .init_source = source_noop,
        .fill_input_buffer = source_is_empty,
        .skip_input_data = source_skip,
        .resync_to_restart = jpeg_resync_to_restart,
        .term_source = source_noop,
    };
    decoder->jpeg.src = &decoder->source;
}

void sl_end_picture(sl_decoder *decoder)
{
    jpeg_destroy_decompress(&decoder->jpeg);
}
