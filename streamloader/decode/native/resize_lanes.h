/*
 * The passes for vectors of LANES x 128 bits, included once for each vector width.
 *
 * Across, each lane holds the same pixels of another row, so that one weight serves all lanes.
 * The including file defines LANES, TARGET (a target attribute), vec, load_lanes(rows, offset)
 * and, by the V_ names, the operations of its width, all of which work lane by lane.
 */

/* Rows resized across together. */
enum { GROUPS = 2, ROWS = GROUPS * LANES };

/* Bytes of two neighbouring RGB pixels to 16 bits, interleaved: R R G G B B 0 0. */
static const int8_t PIXEL_PAIR[16] = {0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1};
static const int8_t NEXT_PAIR[16] = {6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1};
/* Four pixels of four bytes to three bytes each. */
static const int8_t DROP_FOURTH[16] = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1};

static inline int32_t weight_pair(const int16_t *weights)
{
    int32_t pair;
    memcpy(&pair, weights, sizeof pair);
    return pair;
}

/*
 * One output pixel of ROWS rows, 32 bits a channel. Rows beyond LANES share the weights' loads with
 * the first ones.
 */
TARGET static inline void across_pixel(vec sums[GROUPS], const uint8_t *const *rows, int64_t offset,
                                       const int16_t *weights, int32_t taps, int two_taps)
{
    for (int group = 0; group < GROUPS; group++) {
        sums[group] = V_SET32(SL_WEIGHT_ONE / 2);
    }
    for (int32_t tap = 0; tap < taps; tap += SL_TAP_GROUP) {
        vec weight = V_SET32(weight_pair(weights + tap));
        vec next_weight = V_SET32(weight_pair(weights + tap + 2));
        for (int group = 0; group < GROUPS; group++) {
            vec pixels = load_lanes(rows + group * LANES, offset + 3 * tap);
            vec pair = V_SHUFFLE8(pixels, V_REPEAT128(PIXEL_PAIR));
            sums[group] = V_ADD32(sums[group], V_MADD16(pair, weight));
            if (!two_taps) {
                pair = V_SHUFFLE8(pixels, V_REPEAT128(NEXT_PAIR));
                sums[group] = V_ADD32(sums[group], V_MADD16(pair, next_weight));
            }
        }
    }
    for (int group = 0; group < GROUPS; group++) {
        sums[group] = V_SHIFT_RIGHT32(sums[group], SL_WEIGHT_BITS);
    }
}

TARGET static inline void across_rows(const sl_filter *filter, const uint8_t *const *rows,
                                      uint8_t *const *outputs, int32_t taps, int two_taps)
{
    /* Copies: the bytes stored below could lie anywhere, for all that the compiler knows. */
    const int32_t *starts = filter->starts, num_outputs = filter->output;
    const int16_t *weights = filter->weights;
    for (int32_t i = 0; i < num_outputs; i += SL_OUTPUT_GROUP) {
        vec sums[SL_OUTPUT_GROUP][GROUPS];
        for (int k = 0; k < SL_OUTPUT_GROUP; k++) {
            across_pixel(sums[k], rows, 3 * (int64_t)starts[i + k], weights, taps, two_taps);
            weights += taps;
        }
        for (int group = 0; group < GROUPS; group++) {
            vec low = V_PACK32(sums[0][group], sums[1][group]);
            vec bytes = V_PACK16(low, V_PACK32(sums[2][group], sums[3][group]));
            store_lanes(outputs + group * LANES, 3 * (int64_t)i,
                        V_SHUFFLE8(bytes, V_REPEAT128(DROP_FOURTH)));
        }
    }
}

TARGET static void across(const sl_filter *filter, const uint8_t *const *rows, int32_t num_rows,
                          uint8_t *const *outputs)
{
    for (int32_t first = 0; first < num_rows; first += ROWS) {
        const uint8_t *inputs[ROWS];
        uint8_t *results[ROWS];
        for (int32_t i = 0; i < ROWS; i++) {
            /* Lanes without a row of their own repeat the last one. */
            int32_t row = first + i < num_rows ? first + i : num_rows - 1;
            inputs[i] = rows[row];
            results[i] = outputs[row];
        }
        if (filter->taps > SL_TAP_GROUP) {
            across_rows(filter, inputs, results, filter->taps, 0);
        } else if (filter->used > 2) {
            across_rows(filter, inputs, results, SL_TAP_GROUP, 0);
        } else {
            across_rows(filter, inputs, results, SL_TAP_GROUP, 1);
        }
    }
}

/* LANES x 16 bytes of an output row. */
TARGET static inline vec down_block(const uint8_t *const *rows, const int16_t *weights,
                                    int32_t taps, int64_t offset)
{
    vec zero = V_ZERO(), half = V_SET32(SL_WEIGHT_ONE / 2);
    vec sums[4] = {half, half, half, half};
    for (int32_t tap = 0; tap < taps; tap += 2) {
        vec one = V_LOAD(rows[tap] + offset), two = V_LOAD(rows[tap + 1] + offset);
        vec weight = V_SET32(weight_pair(weights + tap));
        vec low = V_UNPACK_LOW8(one, two), high = V_UNPACK_HIGH8(one, two);
        sums[0] = V_ADD32(sums[0], V_MADD16(V_UNPACK_LOW8(low, zero), weight));
        sums[1] = V_ADD32(sums[1], V_MADD16(V_UNPACK_HIGH8(low, zero), weight));
        sums[2] = V_ADD32(sums[2], V_MADD16(V_UNPACK_LOW8(high, zero), weight));
        sums[3] = V_ADD32(sums[3], V_MADD16(V_UNPACK_HIGH8(high, zero), weight));
    }
    for (int i = 0; i < 4; i++) {
        sums[i] = V_SHIFT_RIGHT32(sums[i], SL_WEIGHT_BITS);
    }
    return V_PACK16(V_PACK32(sums[0], sums[1]), V_PACK32(sums[2], sums[3]));
}

TARGET static void down(const uint8_t *const *rows, const int16_t *weights, int32_t taps,
                        uint8_t *output, int32_t num_bytes)
{
    const int32_t block = 16 * LANES;
    if (num_bytes < block) {
        sl_passes_plain.down(rows, weights, taps, output, num_bytes);
        return;
    }
    for (int32_t begin = 0; begin < num_bytes; begin += block) {
        /* The last block ends with the row, and computes some bytes a second time. */
        int32_t offset = begin + block <= num_bytes ? begin : num_bytes - block;
        V_STORE(output + offset, down_block(rows, weights, taps, offset));
    }
}
