/* From a file's rows of quantised blocks to packed weights (packed.h). */
#include <string.h>

#include "packed.h"

const uint8_t iq4_nl_table[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                  129, 141, 153, 166, 181, 197, 217, 241}; /* value + 128 */
const uint8_t mxfp4_table[16] = {16, 17, 18, 19, 20, 22, 24, 28,
                                 16, 15, 14, 13, 12, 10, 8,  4}; /* twice the value + 16 */

form form_of(int32_t type) {
#define OF_TYPE(name, its_form) case name: return its_form;
    switch (type) {
        QUANTISED_TYPES(OF_TYPE)
        FLOAT_TYPES(OF_TYPE)
    }
#undef OF_TYPE
    return (form){0, FLOATS, -1, NULL, 0};
}

/* One row's block of 32, whatever its type. */
typedef struct row_block {
    uint8_t low[32];           /* nibbles: byte i is weight i, and weight 16 + i above; or bytes */
    uint8_t high[BLOCK];       /* what weights of five and six bits have above them */
    uint16_t scale, minimum;   /* f16; of scales of scales: the header's */
    uint8_t times[2];          /* SUPER_SCALE_MIN: scale's, minimum's; SUPER_HALVES: each half's */
    uint8_t exponent;
} row_block;

static uint16_t f16_at(const uint8_t *p) {
    uint16_t bits;
    memcpy(&bits, p, 2);
    return bits;
}

static void fifth_bits(row_block *b, const uint8_t *qh) {
    for (int i = 0; i < BLOCK; i++)
        b->high[i] = qh[i / 8] >> i % 8 & 1;
}

static void read_q8_0(row_block *b, const uint8_t *p) {
    b->scale = f16_at(p);
    for (int i = 0; i < BLOCK; i++)
        b->low[i] = p[2 + i] ^ 0x80; /* + 128 */
}

/* Q4_K and Q5_K: eight 6-bit scales and minima in 12 bytes. */
static void read_super_scales(row_block *b, const uint8_t *p, int j) {
    const uint8_t *s = p + 4;
    b->scale = f16_at(p);
    b->minimum = f16_at(p + 2) ^ 0x8000;
    if (j < 4) {
        b->times[0] = s[j] & 63;
        b->times[1] = s[j + 4] & 63;
    } else {
        b->times[0] = (uint8_t)((s[j + 4] & 15) | s[j - 4] >> 6 << 4);
        b->times[1] = (uint8_t)(s[j + 4] >> 4 | s[j] >> 6 << 4);
    }
}

/* From 32 bytes that have these weights in their lower halves, or in their upper ones. */
static void halves(row_block *b, const uint8_t *qs, int is_upper) {
    int shift = is_upper ? 4 : 0;
    for (int i = 0; i < 16; i++)
        b->low[i] = (uint8_t)((qs[i] >> shift & 15) | (qs[16 + i] >> shift & 15) << 4);
}

static void read_q6_k(row_block *b, const uint8_t *p, int j) {
    const uint8_t *ql = p + 64 * (j / 4), *qh = p + 128 + 32 * (j / 4), *scales = p + 192;
    b->scale = f16_at(p + 208);
    memcpy(b->times, scales + 2 * j, 2);
    halves(b, ql + 32 * (j % 2), j % 4 >= 2);
    for (int i = 0; i < BLOCK; i++)
        b->high[i] = qh[i] >> 2 * (j % 4) & 3;
}

/* Block number `index` of a row at `row`. */
static void read_block(int32_t type, row_block *b, const uint8_t *row, int64_t index) {
    int j = (int)(index % SUPER);
    const uint8_t *p;
    switch (type) {
    case Q4_0: case IQ4_NL:
        p = row + index * 18;
        b->scale = f16_at(p);
        memcpy(b->low, p + 2, 16);
        break;
    case Q4_1:
        p = row + index * 20;
        b->scale = f16_at(p);
        b->minimum = f16_at(p + 2);
        memcpy(b->low, p + 4, 16);
        break;
    case Q5_0:
        p = row + index * 22;
        b->scale = f16_at(p);
        memcpy(b->low, p + 6, 16);
        fifth_bits(b, p + 2);
        break;
    case Q5_1:
        p = row + index * 24;
        b->scale = f16_at(p);
        b->minimum = f16_at(p + 2);
        memcpy(b->low, p + 8, 16);
        fifth_bits(b, p + 4);
        break;
    case Q8_0:
        read_q8_0(b, row + index * 34);
        break;
    case MXFP4:
        p = row + index * 17;
        b->exponent = p[0];
        memcpy(b->low, p + 1, 16);
        break;
    case Q4_K:
        p = row + index / SUPER * 144;
        read_super_scales(b, p, j);
        halves(b, p + 16 + j / 2 * 32, j % 2);
        break;
    case Q5_K:
        p = row + index / SUPER * 176;
        read_super_scales(b, p, j);
        halves(b, p + 48 + j / 2 * 32, j % 2);
        for (int i = 0; i < BLOCK; i++)
            b->high[i] = p[16 + i] >> j & 1;
        break;
    case Q6_K:
        read_q6_k(b, row + index / SUPER * 210, j);
        break;
    }
}

static int64_t row_bytes(int32_t type, int64_t num_in) {
    switch (type) {
    case F32: return num_in * 4;
    case F16: case BF16: return num_in * 2;
    case Q4_0: case IQ4_NL: return num_in / BLOCK * 18;
    case Q4_1: return num_in / BLOCK * 20;
    case Q5_0: return num_in / BLOCK * 22;
    case Q5_1: return num_in / BLOCK * 24;
    case Q8_0: return num_in / BLOCK * 34;
    case MXFP4: return num_in / BLOCK * 17;
    case Q4_K: return num_in / (BLOCK * SUPER) * 144;
    case Q5_K: return num_in / (BLOCK * SUPER) * 176;
    default: return num_in / (BLOCK * SUPER) * 210;
    }
}

/* The block of row r. */
static void put_quants(form f, uint8_t *quants, int r, const row_block *b) {
    for (int g = 0; g < (f.bits == 8 ? 8 : 4); g++)
        memcpy(quants + 64 * g + 4 * r, b->low + 4 * g, 4);
    if (f.bits != 5 && f.bits != 6)
        return;
    for (int g = 0; g < GROUPS; g++) { /* four bytes at once: no bit leaves its byte */
        uint8_t *at = quants + 256 + 4 * r + (f.bits == 6 ? 64 * (g / 4) : 0);
        uint32_t four, sum;
        memcpy(&four, b->high + 4 * g, 4);
        memcpy(&sum, at, 4);
        sum |= four << (f.bits == 6 ? 2 * (g % 4) : g);
        memcpy(at, &sum, 4);
    }
}

static void put_scales(form f, uint8_t *header, uint8_t *scales, int r, const row_block *b) {
    uint8_t *f16s = has_super(f.scales) ? header : scales;
    switch (f.scales) {
    case SCALE_MIN: case SUPER_SCALE_MIN:
        memcpy(f16s + 2 * ROWS + 2 * r, &b->minimum, 2);
        /* fall through */
    case SCALE: case SUPER_HALVES:
        memcpy(f16s + 2 * r, &b->scale, 2);
        break;
    default:
        scales[r] = b->exponent;
    }
    if (has_super(f.scales)) {
        scales[r] = b->times[0];
        scales[ROWS + r] = b->times[1];
    }
}

static void pack_quantised(int32_t type, form f, uint8_t *dst, const uint8_t *src, int64_t num_in,
                           int num_rows) {
    uint8_t *header = dst;
    for (int64_t index = 0; index < num_in / BLOCK; index++) {
        if (has_super(f.scales) && index % SUPER == 0) {
            header = dst;
            dst += header_bytes(f);
        }
        for (int r = 0; r < num_rows; r++) {
            row_block b = {.exponent = 0};
            read_block(type, &b, src + r * row_bytes(type, num_in), index);
            put_scales(f, header, dst, r, &b);
            put_quants(f, dst + scale_bytes(f), r, &b);
        }
        dst += block_bytes(f);
    }
}

static void pack_floats(form f, uint8_t *dst, const uint8_t *src, int64_t num_in, int num_rows) {
    int size = f.bits / 8;
    for (int64_t i = 0; i < num_in; i++)
        for (int r = 0; r < num_rows; r++)
            memcpy(dst + (i * ROWS + r) * size, src + (r * num_in + i) * size, (size_t)size);
}

int64_t kvalet_packed_bytes(int32_t type, int64_t num_in, int64_t num_out) {
    form f = form_of(type);
    int64_t unit = f.scales == FLOATS ? 1 : has_super(f.scales) ? BLOCK * SUPER : BLOCK;
    if (!f.bits || num_in <= 0 || num_out <= 0 || num_in % unit)
        return 0;
    return num_groups(num_out) * group_bytes(f, num_in);
}

void kvalet_pack(int32_t type, uint8_t *dst, const uint8_t *src, int64_t num_in, int64_t num_out) {
    form f = form_of(type);
    memset(dst, 0, (size_t)kvalet_packed_bytes(type, num_in, num_out));
    for (int64_t row = 0; row < num_out; row += ROWS) {
        int num_rows = num_out - row < ROWS ? (int)(num_out - row) : ROWS;
        const uint8_t *rows = src + row * row_bytes(type, num_in);
        if (f.scales == FLOATS)
            pack_floats(f, dst, rows, num_in, num_rows);
        else
            pack_quantised(type, f, dst, rows, num_in, num_rows);
        dst += group_bytes(f, num_in);
    }
}
