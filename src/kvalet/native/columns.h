/* A linear layer's input, quantised: a column for each token.
 *
 *   column:  | num_in int8 | for each block of 32: scale, scale * sum, -sum, -sum of first half |
 *
 * x is about scale * int8, within half a scale, the scale being the block's largest |x| / 127. Weights
 * that are floats read the floats themselves.
 */
#ifndef KVALET_COLUMNS_H
#define KVALET_COLUMNS_H

#include "packed.h"

typedef struct block_scale {
    float scale, sum;          /* sum: of the quantised, scaled */
    int32_t minus, minus_half; /* sums of the int8, negated: of all 32, of the first 16 */
} block_scale;

static inline int64_t column_bytes(int64_t num_in) {
    return (num_in + num_in / BLOCK * (int64_t)sizeof(block_scale) + 63) / 64 * 64;
}

static inline const block_scale *scales_of(const uint8_t *column, int64_t num_in) {
    return (const block_scale *)(column + num_in);
}

/* Quantise num_in floats, a multiple of 32, to a column. */
void quantise(const float *x, uint8_t *column, int64_t num_in);

#endif
