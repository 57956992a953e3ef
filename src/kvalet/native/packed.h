/* How the weights of a linear layer lie in memory once they are packed for our kernels.
 *
 * Sixteen rows go together, and along them blocks of 32 weights, so that a 64-byte vector holds four
 * neighbouring weights of each of the rows: what one dot-product instruction takes. A block is
 *
 *   scales  [16 rows] of each kind that the form has, then
 *   low     nibbles, 256 bytes: byte 64 g + 4 r + k is weight 4 g + k of row r, and weight
 *           16 + 4 g + k in its upper half (g < 4); or, of 8 bits, 512 bytes: 8 groups g
 *   high    what a weight has above its nibble: 64 bytes, bit g of byte 4 r + k is weight 4 g + k's
 *           fifth bit (g < 8); or 128 bytes, two bits each: the first 64 have those of groups 0-3
 *
 * Forms with scales of scales have them in front of every eighth block. Rows behind the last are
 * zero. A weight is scale * (code - 2^shift) + minimum, or scale * (table[code] - 2^shift). The
 * values are those of the file, to the bit.
 */
#ifndef KVALET_PACKED_H
#define KVALET_PACKED_H

#include "kvalet.h"

#define ROWS 16         /* packed together */
#define BLOCK 32        /* weights of a row in a block */
#define GROUPS 8        /* of four weights, in a block */
#define SUPER 8         /* blocks that share scales of scales */

typedef enum {
    SCALE,           /* f16 scale */
    SCALE_MIN,       /* f16 scale, f16 minimum */
    SUPER_SCALE_MIN, /* of eight blocks: f16 scale and f16 minimum, negated; then u8 times each */
    SUPER_HALVES,    /* of eight blocks: f16 scale; then i8 times it for each half of a block */
    EXPONENT,        /* u8: 2^(e - 128) */
    FLOATS           /* no blocks: the weights themselves, [num_in][16 rows] */
} scaling;

typedef struct form {
    int bits;             /* of a code: 4, 5, 6 or 8; of FLOATS: 16 or 32 */
    scaling scales;
    int shift;            /* codes stand for themselves less 2^shift; -1: for themselves */
    const uint8_t *table; /* codes to values + 2^shift; NULL: themselves */
    int is_wide;          /* values may be above 127 */
} form;

/* ggml's numbers for types */
enum {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13,
    Q6_K = 14, IQ4_NL = 20, BF16 = 30, MXFP4 = 39
};

extern const uint8_t iq4_nl_table[16], mxfp4_table[16];

static inline int has_super(scaling s) { return s == SUPER_SCALE_MIN || s == SUPER_HALVES; }

static inline int header_bytes(form f) {
    return f.scales == SUPER_SCALE_MIN ? 4 * ROWS : f.scales == SUPER_HALVES ? 2 * ROWS : 0;
}

static inline int scale_bytes(form f) {
    switch (f.scales) {
    case SCALE: return 2 * ROWS;
    case SCALE_MIN: return 4 * ROWS;
    case SUPER_SCALE_MIN: case SUPER_HALVES: return 2 * ROWS;
    case EXPONENT: return ROWS;
    default: return 0;
    }
}

static inline int block_bytes(form f) {
    return scale_bytes(f) + f.bits * BLOCK * ROWS / 8;
}

/* Of sixteen rows. */
static inline int64_t group_bytes(form f, int64_t num_in) {
    if (f.scales == FLOATS)
        return num_in * ROWS * f.bits / 8;
    int64_t blocks = num_in / BLOCK;
    return blocks * block_bytes(f) + blocks / SUPER * header_bytes(f);
}

static inline int num_groups(int64_t num_out) { return (int)((num_out + ROWS - 1) / ROWS); }

/* X(type, form), of every type that can be packed */
#define QUANTISED_TYPES(X)                                  \
    X(Q4_0, ((form){4, SCALE, 3, NULL, 0}))                 \
    X(Q4_1, ((form){4, SCALE_MIN, -1, NULL, 0}))            \
    X(Q5_0, ((form){5, SCALE, 4, NULL, 0}))                 \
    X(Q5_1, ((form){5, SCALE_MIN, -1, NULL, 0}))            \
    X(Q8_0, ((form){8, SCALE, 7, NULL, 1}))                 \
    X(Q4_K, ((form){4, SUPER_SCALE_MIN, -1, NULL, 0}))      \
    X(Q5_K, ((form){5, SUPER_SCALE_MIN, -1, NULL, 0}))      \
    X(Q6_K, ((form){6, SUPER_HALVES, 5, NULL, 0}))          \
    X(IQ4_NL, ((form){4, SCALE, 7, iq4_nl_table, 1}))       \
    X(MXFP4, ((form){4, EXPONENT, 4, mxfp4_table, 0}))
#define FLOAT_TYPES(X)                                      \
    X(F32, ((form){32, FLOATS, -1, NULL, 0}))               \
    X(F16, ((form){16, FLOATS, -1, NULL, 0}))               \
    X(BF16, ((form){16, FLOATS, -1, NULL, 0}))

/* Of a type that is none of these: bits = 0. */
form form_of(int32_t type);

#endif
