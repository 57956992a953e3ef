/* What comes before a linear layer, fused with the quantising of its input: norms, gates. */
#include "columns.h"

#include "bytes.h"

int64_t kvalet_column_bytes(int64_t num_in) { return column_bytes(num_in); }

static void quantise_block(const float *x, int8_t *q, block_scale *s) {
    v16 a = v16_load(x), b = v16_load(x + 16);
    float largest = v16_reduce_max(v16_max(v16_abs(a), v16_abs(b)));
    v16 inverse = v16_set1(largest > 1e-30f ? 127.0f / largest : 0.0f);
    int32_t first = v16_store_i8(q, v16_mul(a, inverse));
    int32_t sum = first + v16_store_i8(q + 16, v16_mul(b, inverse));
    s->scale = largest / 127.0f;
    s->sum = s->scale * (float)sum;
    s->minus = -sum;
    s->minus_half = -first;
}

void quantise(const float *x, uint8_t *column, int64_t num_in) {
    block_scale *scales = (block_scale *)(column + num_in);
    for (int64_t i = 0; i < num_in; i += BLOCK)
        quantise_block(x + i, (int8_t *)column + i, scales + i / BLOCK);
}

void kvalet_quantise_rows(const float *x, uint8_t *columns, int64_t num_in, int width, int ith,
                          int nth) {
    for (int c = ith; c < width; c += nth)
        quantise(x + c * num_in, columns + c * column_bytes(num_in), num_in);
}

/* Root mean square norm; sixteen sums over every sixteenth element, added by the tree. */
static float inverse_rms(const float *x, int64_t n, float eps) {
    v16 sum = v16_set1(0.0f);
    for (int64_t i = 0; i < n; i += 16) {
        v16 a = v16_load(x + i);
        sum = v16_fma(a, a, sum);
    }
    return 1.0f / sqrtf(v16_reduce_add(sum) / (float)n + eps);
}

void kvalet_norm_rows(const float *x, const float *weight, float eps, uint8_t *columns,
                      int64_t num_in, int width, int ith, int nth) {
    for (int c = ith; c < width; c += nth) {
        const float *row = x + c * num_in;
        uint8_t *column = columns + c * column_bytes(num_in);
        block_scale *scales = (block_scale *)(column + num_in);
        v16 inverse = v16_set1(inverse_rms(row, num_in, eps));
        for (int64_t i = 0; i < num_in; i += BLOCK) {
            float normed[BLOCK];
            for (int j = 0; j < BLOCK; j += 16) {
                v16 a = v16_mul(v16_load(row + i + j), inverse);
                v16_store(normed + j, v16_mul(a, v16_load(weight + i + j)));
            }
            quantise_block(normed, (int8_t *)column + i, scales + i / BLOCK);
        }
    }
}

/* x / (1 + exp(-x)) */
INLINE v16 v16_silu(v16 x) {
    const v16 zero = v16_set1(0.0f), one = v16_set1(1.0f);
    v16 e = v16_exp(v16_sub(zero, v16_abs(x)));
    v16 top = v16_select_lt(x, zero, e, one);
    return v16_mul(x, v16_div(top, v16_add(one, e)));
}

void kvalet_swiglu_rows(const float *gate_up, uint8_t *columns, int64_t num_in, int width, int ith,
                        int nth) {
    for (int c = ith; c < width; c += nth) {
        const float *gate = gate_up + 2 * c * num_in, *up = gate + num_in;
        uint8_t *column = columns + c * column_bytes(num_in);
        block_scale *scales = (block_scale *)(column + num_in);
        for (int64_t i = 0; i < num_in; i += BLOCK) {
            float gated[BLOCK];
            for (int j = 0; j < BLOCK; j += 16)
                v16_store(gated + j, v16_mul(v16_silu(v16_load(gate + i + j)), v16_load(up + i + j)));
            quantise_block(gated, (int8_t *)column + i, scales + i / BLOCK);
        }
    }
}
