/* Headers of ordinary JPEGs: jpeg_header.py in C, but for the words about what is wrong. */
#include <string.h>

#include "records.h"

enum { MARKER = 0xFF, SOI = 0xD8, EOI = 0xD9, SOS = 0xDA, APP1 = 0xE1, DHT = 0xC4, JPG = 0xC8, DAC = 0xCC };
enum { ORIENTATION = 0x0112, SHORT = 3, ENTRY_BYTES = 12 };
/* As in picture_kind.py. */
enum { JPEG = 1, GRAY = 1, OTHER = 15 };

static uint32_t number(const uint8_t *at, int bytes, int big) {
    uint32_t value = 0;
    for (int i = 0; i < bytes; i++) {
        value = value << 8 | at[big ? i : bytes - 1 - i];
    }
    return value;
}

/* Orientation stated by the first directory of a TIFF structure, else 1; see exif.py. */
static int32_t read_orientation(const uint8_t *tiff, int64_t size) {
    int big = size >= 8 && memcmp(tiff, "MM\0*", 4) == 0;
    if (size < 8 || (!big && memcmp(tiff, "II*\0", 4) != 0)) {
        return 1;
    }
    int64_t start = number(tiff + 4, 4, big);
    if (start + 2 > size) {
        return 1;
    }
    int64_t stated = number(tiff + start, 2, big), present = (size - start - 2) / ENTRY_BYTES;
    for (int64_t i = 0; i < (stated < present ? stated : present); i++) {
        const uint8_t *entry = tiff + start + 2 + i * ENTRY_BYTES;
        if (number(entry, 2, big) == ORIENTATION) {
            uint32_t value = number(entry + 8, 2, big);
            int sound = number(entry + 2, 2, big) == SHORT && number(entry + 4, 4, big) == 1;
            return sound && value >= 1 && value <= 8 ? (int32_t)value : 1;
        }
    }
    return 1;
}

static int32_t sampling_of(const uint8_t *factors, int components) {
    static const uint8_t lumas[] = {0x11, 0x21, 0x22, 0x12, 0x41, 0x42, 0x14};
    if (components == 1) {
        return GRAY;
    }
    if (components == 2 || factors[3] != 0x11 || factors[6] != 0x11 ||
        (components == 4 && factors[9] != factors[0])) {
        return OTHER;
    }
    const uint8_t *found = memchr(lumas, factors[0], sizeof lumas);
    return found == NULL ? OTHER : (int32_t)(found - lumas) + GRAY + 1;
}

static int read_frame(uint8_t marker, const uint8_t *body, int64_t size, sl_jpeg_header *header) {
    if (size < 6 || size != 6 + 3 * body[5]) {
        return 0;
    }
    header->height = (int32_t)number(body + 1, 2, 1);
    header->width = (int32_t)number(body + 3, 2, 1);
    header->components = body[5];
    if (header->width == 0 || header->height == 0 || body[5] < 1 || body[5] > 4) {
        return 0;
    }
    for (int i = 0; i < body[5]; i++) {
        uint8_t factor = body[7 + 3 * i];
        if (factor >> 4 < 1 || factor >> 4 > 4 || (factor & 15) < 1 || (factor & 15) > 4) {
            return 0;
        }
    }
    int plain = body[0] == 8 && marker <= 0xC2;
    header->progressive = (marker & 3) == 2;
    header->sampling = plain ? sampling_of(body + 7, body[5]) : OTHER;
    return 1;
}

int32_t sl_read_jpeg_header(const uint8_t *data, int64_t size, sl_jpeg_header *header) {
    int64_t at = 2;
    int has_frame = 0;
    header->orientation = 0;
    while (1) {
        const uint8_t *found = at < size ? memchr(data + at, MARKER, (size_t)(size - at)) : NULL;
        at = found == NULL ? size : found - data;
        while (at < size && data[at] == MARKER) {
            at++;
        }
        if (at >= size) {
            return 0;
        }
        uint8_t marker = data[at++];
        if (marker == 0 || marker == 0x01 || (marker >= 0xD0 && marker < SOI)) {
            continue;
        }
        if (marker == EOI || marker == SOS) {
            header->orientation = header->orientation ? header->orientation : 1;
            return has_frame;
        }
        int64_t length = at + 2 > size ? 0 : (int64_t)number(data + at, 2, 1);
        if (marker == SOI || length < 2 || at + length > size) {
            return 0;
        }
        const uint8_t *body = data + at + 2;
        if ((marker & 0xF0) == 0xC0 && marker != DHT && marker != JPG && marker != DAC) {
            if (has_frame || !read_frame(marker, body, length - 2, header)) {
                return 0;
            }
            has_frame = 1;
        } else if (marker == APP1 && !header->orientation && length >= 8 &&
                   memcmp(body, "Exif\0", 6) == 0) {
            header->orientation = read_orientation(body + 6, length - 8);
        }
        at += length;
    }
}

int64_t sl_read_jpeg_headers(const uint8_t *data, int64_t size, int64_t count,
                             const int64_t *starts, const int64_t *ends, uint32_t *widths,
                             uint32_t *heights, uint16_t *kinds) {
    for (int64_t i = 0; i < count; i++) {
        if (starts[i] < 0 || ends[i] < starts[i] || ends[i] > size) {
            return -1;
        }
        const uint8_t *picture = data + starts[i];
        sl_jpeg_header header;
        if (ends[i] - starts[i] < 2 || picture[0] != MARKER || picture[1] != SOI ||
            !sl_read_jpeg_header(picture, ends[i] - starts[i], &header)) {
            return i;
        }
        widths[i] = (uint32_t)header.width;
        heights[i] = (uint32_t)header.height;
        kinds[i] = (uint16_t)(JPEG | header.progressive << 4 | header.components << 5 |
                              header.sampling << 8 | header.orientation << 12);
    }
    return count;
}
