/*
 * From a read header to a finished row: only the scanlines and columns that the crop needs, at
 * the coarsest scale that still covers the target, resized as they come.
 */
#include "decoder.h"

#include <string.h>

/* Scanlines resized across together, a multiple of the lanes of every vector width. */
enum { LINES_AT_ONCE = 8 };
/* The column at the edge of a crop is upsampled without its neighbour: keep one away from it. */
enum { MARGIN_COLUMNS = 2 };
/* Fewer chroma columns than three would be upsampled by another rule. */
enum { LEAST_COLUMNS = 32 };
enum { TARGETS_LEFT = 2 };

/* One picture on its way; rows and lines count from the decoded picture's first. */
typedef struct {
    sl_decoder *decoder;
    const sl_task *task;
    sl_filter columns;
    sl_filter lines;
    const uint8_t *line_bytes[LINES_AT_ONCE]; /* scanlines as RGB */
    uint8_t *cmyk_bytes[LINES_AT_ONCE];       /* before conversion; NULL if there is none */
    uint8_t **resized;                        /* ring of num_resized lines */
    const uint8_t **taps;
    int32_t num_resized;
    int32_t next_line; /* not yet read */
    int32_t width;     /* of a scanline, in pixels */
} passage;

/*
 * How much coarser than luma a component becomes when the picture is scaled: libjpeg scales a
 * subsampled one less to make up for it, but only by the same factor along both axes.
 */
static int uneven_sampling(const struct jpeg_decompress_struct *jpeg)
{
    int most = 1;
    for (int i = 0; i < jpeg->num_components; i++) {
        int across = jpeg->max_h_samp_factor / jpeg->comp_info[i].h_samp_factor;
        int down = jpeg->max_v_samp_factor / jpeg->comp_info[i].v_samp_factor;
        int uneven = across > down ? across / down : down / across;
        most = uneven > most ? uneven : most;
    }
    return most;
}

/*
 * The largest of 1, 2, 4, 8 by which the box can shrink and still be TARGETS_LEFT as large as the
 * target. Nearer to the target the coarse pixels themselves, not the filter, would decide which
 * detail stays: at once the target's size, sharp pictures differ by 3 of 255 on the mean.
 */
static unsigned choose_scale(const struct jpeg_decompress_struct *jpeg, const sl_task *task,
                             const sl_box *box)
{
    double left = TARGETS_LEFT * uneven_sampling(jpeg);
    double widths = (box->x1 - box->x0) / task->width / left;
    double heights = (box->y1 - box->y0) / task->height / left;
    unsigned scale = 8;
    while (scale > 1 && (widths < scale || heights < scale)) {
        scale /= 2;
    }
    return scale;
}

static void build_filters(passage *p, const sl_box *box, unsigned scale)
{
    const struct jpeg_decompress_struct *jpeg = &p->decoder->jpeg;
    /* A scaled pixel stands for scale x scale stored ones, also where the last is cut. */
    sl_axis across = {box->x0 / scale, box->x1 / scale, (int32_t)jpeg->output_width,
                      p->task->width, box->flip};
    sl_axis down = {box->y0 / scale, box->y1 / scale, (int32_t)jpeg->output_height,
                    p->task->height, 0};
    sl_filter_build(&p->columns, &across,
                    sl_reserve(p->decoder, SL_COLUMN_FILTER, sl_filter_bytes(&across)));
    sl_filter_build(&p->lines, &down,
                    sl_reserve(p->decoder, SL_LINE_FILTER, sl_filter_bytes(&down)));
}

static void crop_columns(passage *p)
{
    struct jpeg_decompress_struct *jpeg = &p->decoder->jpeg;
    int32_t whole = (int32_t)jpeg->output_width;
    int32_t first = p->columns.first - MARGIN_COLUMNS, last = p->columns.last + MARGIN_COLUMNS;
    last = last - first < LEAST_COLUMNS ? first + LEAST_COLUMNS : last;
    if (last > whole) {
        first = last - first > whole ? 0 : first;
        first = whole - first < LEAST_COLUMNS ? whole - LEAST_COLUMNS : first;
        last = whole;
    }
    JDIMENSION offset = first > 0 ? (JDIMENSION)first : 0;
    JDIMENSION width = (JDIMENSION)last - offset;
    if (width < (JDIMENSION)whole) {
        jpeg_crop_scanline(jpeg, &offset, &width);
        for (int32_t i = 0; i < p->columns.output; i++) {
            p->columns.starts[i] -= (int32_t)offset;
        }
    }
    p->width = (int32_t)jpeg->output_width;
}

static void place_lines(passage *p)
{
    /* Weightless taps of the last pixel reach beyond the line. */
    int64_t stride = 3 * ((int64_t)p->width + p->columns.taps) + SL_ROW_SLACK;
    uint8_t *bytes = sl_reserve(p->decoder, SL_LINES, stride * LINES_AT_ONCE);
    uint8_t *cmyk = NULL;
    int64_t cmyk_stride = 4 * (int64_t)p->width;
    if (p->decoder->jpeg.out_color_space == JCS_CMYK) {
        cmyk = sl_reserve(p->decoder, SL_CMYK_LINES, cmyk_stride * LINES_AT_ONCE);
    }
    for (int i = 0; i < LINES_AT_ONCE; i++) {
        p->line_bytes[i] = bytes + i * stride;
        p->cmyk_bytes[i] = cmyk == NULL ? NULL : cmyk + i * cmyk_stride;
    }
}

static void place_resized(passage *p)
{
    int64_t stride = sl_up_to_multiple(3 * p->task->width + SL_ROW_SLACK, 64);
    p->num_resized = p->lines.taps + LINES_AT_ONCE;
    uint8_t *bytes = sl_reserve(p->decoder, SL_RESIZED, stride * p->num_resized);
    int64_t pointers = p->num_resized + p->lines.taps;
    p->resized = sl_reserve(p->decoder, SL_POINTERS, pointers * (int64_t)sizeof(uint8_t *));
    p->taps = (const uint8_t **)(p->resized + p->num_resized);
    for (int32_t i = 0; i < p->num_resized; i++) {
        p->resized[i] = bytes + i * stride;
    }
}

/* Adobe stores ink as its complement: R = C' K' / 255, rounded as Pillow rounds it. */
static void convert_cmyk(const uint8_t *cmyk, uint8_t *rgb, int32_t width)
{
    for (int32_t x = 0; x < width; x++) {
        int32_t white = cmyk[4 * x + 3];
        for (int channel = 0; channel < 3; channel++) {
            int32_t product = (255 - cmyk[4 * x + channel]) * white + 128;
            rgb[3 * x + channel] = (uint8_t)(white - (((product >> 8) + product) >> 8));
        }
    }
}

/* Reads lines up to LINES_AT_ONCE and resizes them across. */
static void read_lines(passage *p)
{
    struct jpeg_decompress_struct *jpeg = &p->decoder->jpeg;
    int32_t wanted = p->lines.last - p->next_line, count = 0;
    wanted = wanted < LINES_AT_ONCE ? wanted : LINES_AT_ONCE;
    int is_cmyk = p->cmyk_bytes[0] != NULL;
    uint8_t **targets = is_cmyk ? p->cmyk_bytes : (uint8_t **)p->line_bytes;
    while (count < wanted) {
        JDIMENSION got = jpeg_read_scanlines(jpeg, targets + count, (JDIMENSION)(wanted - count));
        if (got == 0) {
            sl_give_up(p->decoder, SL_FAULT, "truncated JPEG: its lines end early");
        }
        count += (int32_t)got;
    }
    uint8_t *outputs[LINES_AT_ONCE];
    for (int32_t i = 0; i < count; i++) {
        if (is_cmyk) {
            convert_cmyk(p->cmyk_bytes[i], (uint8_t *)p->line_bytes[i], p->width);
        }
        outputs[i] = p->resized[(p->next_line + i) % p->num_resized];
    }
    p->decoder->passes->across(&p->columns, p->line_bytes, count, outputs);
    p->next_line += count;
}

/* One finished row of the target, in bytes. */
static void resize_down(passage *p, int32_t row, uint8_t *output)
{
    int32_t start = p->lines.starts[row];
    int32_t taps = sl_up_to_multiple(p->lines.used, 2);
    for (int32_t tap = 0; tap < taps; tap++) {
        /* Weightless taps may lie beyond the last line: any initialised line will do. */
        int32_t line = start + tap < p->next_line ? start + tap : p->next_line - 1;
        p->taps[tap] = p->resized[line % p->num_resized];
    }
    const int16_t *weights = p->lines.weights + (int64_t)row * p->lines.taps;
    p->decoder->passes->down(p->taps, weights, taps, output, 3 * p->task->width);
}

static void look_up_16(const uint16_t *table, const uint8_t *values, int32_t width, uint16_t *out)
{
    for (int32_t x = 0; x < width; x++) {
        out[3 * x] = table[values[3 * x]];
        out[3 * x + 1] = table[256 + values[3 * x + 1]];
        out[3 * x + 2] = table[512 + values[3 * x + 2]];
    }
}

static void look_up_32(const uint32_t *table, const uint8_t *values, int32_t width, uint32_t *out)
{
    for (int32_t x = 0; x < width; x++) {
        out[3 * x] = table[values[3 * x]];
        out[3 * x + 1] = table[256 + values[3 * x + 1]];
        out[3 * x + 2] = table[512 + values[3 * x + 2]];
    }
}

static void write_row(passage *p, int32_t row, uint8_t *output)
{
    const sl_task *task = p->task;
    uint8_t *place = output + (int64_t)row * task->width * 3 * task->element_bytes;
    if (task->table == NULL) {
        resize_down(p, row, place);
        return;
    }
    uint8_t *values = sl_reserve(p->decoder, SL_ONE_ROW, 3 * (int64_t)task->width);
    resize_down(p, row, values);
    if (task->element_bytes == 2) {
        look_up_16(task->table, values, task->width, (uint16_t *)place);
    } else {
        look_up_32(task->table, values, task->width, (uint32_t *)place);
    }
}

/*
 * At an eighth of the size every code of the picture is read as at full size, and that is where
 * damage shows: what follows turns any coefficients into some pixels. Here it is next to nothing.
 */
void sl_drop_pixels(sl_decoder *decoder)
{
    struct jpeg_decompress_struct *jpeg = &decoder->jpeg;
    jpeg->out_color_space = jpeg->num_components == 4 ? JCS_CMYK : JCS_RGB;
    jpeg->scale_num = 1;
    jpeg->scale_denom = 8;
    jpeg_start_decompress(jpeg);
    int64_t stride = (int64_t)jpeg->output_width * jpeg->output_components + SL_ROW_SLACK;
    uint8_t *bytes = sl_reserve(decoder, SL_LINES, stride * LINES_AT_ONCE);
    uint8_t *lines[LINES_AT_ONCE];
    for (int i = 0; i < LINES_AT_ONCE; i++) {
        lines[i] = bytes + i * stride;
    }
    while (jpeg->output_scanline < jpeg->output_height) {
        if (jpeg_read_scanlines(jpeg, lines, LINES_AT_ONCE) == 0) {
            sl_give_up(decoder, SL_FAULT, "truncated JPEG: its lines end early");
        }
    }
}

void sl_read_pixels(sl_decoder *decoder, const sl_task *task, const sl_box *box, uint8_t *row)
{
    struct jpeg_decompress_struct *jpeg = &decoder->jpeg;
    passage p = {.decoder = decoder, .task = task};
    jpeg->out_color_space = jpeg->num_components == 4 ? JCS_CMYK : JCS_RGB;
    jpeg->scale_num = 1;
    jpeg->scale_denom = choose_scale(jpeg, task, box);
    jpeg_calc_output_dimensions(jpeg);
    build_filters(&p, box, jpeg->scale_denom);
    jpeg_start_decompress(jpeg);
    crop_columns(&p);
    place_lines(&p);
    place_resized(&p);
    p.next_line = p.lines.first;
    if (p.next_line > 0) {
        jpeg_skip_scanlines(jpeg, (JDIMENSION)p.next_line);
    }
    for (int32_t i = 0; i < task->height; i++) {
        int32_t start = p.lines.starts[i];
        int32_t end = start + p.lines.used < p.lines.last ? start + p.lines.used : p.lines.last;
        while (p.next_line < end) {
            read_lines(&p);
        }
        write_row(&p, i, row);
    }
}
