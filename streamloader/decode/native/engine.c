/*
 * Which JPEGs the engines of a GPU may be given, and where they are cut.
 *
 * The rules are those of gpu/headers.py, which does the same where this was not built: both give
 * the same verdict on any bytes.
 */
#include <string.h>

#include "kernel.h"

enum { SOF0 = 0xC0, DHT = 0xC4, SOI = 0xD8, EOI = 0xD9, SOS = 0xDA, DQT = 0xDB, DRI = 0xDD };
enum { APP0 = 0xE0, ADOBE = 0xEE, APP15 = 0xEF, COMMENT = 0xFE };
enum { SHORTEST_BYTES = 128, MOST_SEGMENTS = 256 };
enum { FRAME_BYTES = 19, SCAN_LENGTH = 12, ADOBE_YCC = 1 };
enum { SAW_FRAME = 1, SAW_HUFFMAN = 2, SAW_QUANTISATION = 4, SAW_ALL = 7 };

static int32_t two_bytes(const uint8_t *at)
{
    return at[0] << 8 | at[1];
}

/* at has FRAME_BYTES readable bytes, the marker's first. */
static int is_frame(const uint8_t *at, int64_t width, int64_t height, uint8_t luma)
{
    int is_rgb = at[10] == 'R' && at[13] == 'G' && at[16] == 'B';
    return two_bytes(at + 2) == FRAME_BYTES - 2 && at[4] == 8 && two_bytes(at + 5) == height &&
           two_bytes(at + 7) == width && at[9] == 3 && at[11] == luma && at[14] == 0x11 &&
           at[17] == 0x11 && !is_rgb;
}

static int is_ycc(const uint8_t *at)
{
    return memcmp(at + 4, "Adobe", 5) != 0 || at[15] == ADOBE_YCC;
}

/* What a segment before the scan adds to what was seen, or -1 if no engine is given this. */
static int32_t judge(const uint8_t *at, int32_t seen, int64_t width, int64_t height, uint8_t luma)
{
    uint8_t marker = at[1];
    if (marker == SOF0)
        return !(seen & SAW_FRAME) && is_frame(at, width, height, luma) ? SAW_FRAME : -1;
    if (marker == DHT)
        return SAW_HUFFMAN;
    if (marker == DQT)
        return SAW_QUANTISATION;
    if (marker == ADOBE)
        return is_ycc(at) ? 0 : -1;
    return marker == DRI || marker == COMMENT || (marker >= APP0 && marker <= APP15) ? 0 : -1;
}

static int is_sound(const uint8_t *data, int64_t length, int64_t width, int64_t height,
                    uint8_t luma)
{
    if (length < SHORTEST_BYTES || data[0] != 0xFF || data[1] != SOI ||
        data[length - 2] != 0xFF || data[length - 1] != EOI)
        return 0;
    int64_t at = 2;
    int32_t seen = 0;
    for (int segment = 0; segment < MOST_SEGMENTS; segment++) {
        /* Every segment passed left room for a whole frame behind it, so this reads inside. */
        const uint8_t *start = data + at;
        int64_t bytes = two_bytes(start + 2);
        if (start[0] != 0xFF || bytes < 2 || at + 2 + bytes + FRAME_BYTES > length)
            return 0;
        if (start[1] == SOS)
            return bytes == SCAN_LENGTH && start[4] == 3 && seen == SAW_ALL;
        int32_t added = judge(start, seen, width, height, luma);
        if (added < 0)
            return 0;
        seen |= added;
        at += 2 + bytes;
    }
    return 0;
}

void sl_plan_engine(const sl_step *steps, int32_t num_steps, const sl_engine_share *share)
{
    for (int64_t n = 0; n < share->count; n++) {
        int64_t width = share->widths[n], height = share->heights[n];
        share->sound[n] = (uint8_t)is_sound(share->data + share->offsets[n], share->lengths[n],
                                            width, height, share->luma[n]);
        if (share->sound[n])
            share->boxes[n] = sl_plan(steps, num_steps, width, height, share->samples[n]);
    }
}
