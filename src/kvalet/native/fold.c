/* The left fold over chunk results: one function for split and whole rows. */
#include "chunk.h"

void fold_start(float *state, int head_dim, const float *sink) {
    memset(state, 0, (size_t)head_dim * sizeof(float));
    state[head_dim] = sink ? *sink : -INFINITY;
    state[head_dim + 1] = sink ? 1.0f : 0.0f;
}

/* exp(max - new_max), also where both are -inf: nothing has been seen then */
static float weight_of(float max, float new_max) {
    return max == -INFINITY ? 0.0f : exp_scalar(max - new_max);
}

void fold_chunk(float *state, const float *result, int head_dim) {
    float max = state[head_dim], chunk_max = result[head_dim];
    float new_max = max > chunk_max ? max : chunk_max;
    float keep = weight_of(max, new_max), add = weight_of(chunk_max, new_max);
    for (int d = 0; d < head_dim; d += 16) {
        v16 kept = v16_mul(v16_load(state + d), v16_set1(keep));
        v16_store(state + d, v16_fma(v16_load(result + d), v16_set1(add), kept));
    }
    state[head_dim] = new_max;
    state[head_dim + 1] = fmaf(result[head_dim + 1], add, state[head_dim + 1] * keep);
}

void fold_finish(const float *state, int head_dim, float *out) {
    v16 inverse = v16_set1(1.0f / state[head_dim + 1]);
    for (int d = 0; d < head_dim; d += 16)
        v16_store(out + d, v16_mul(v16_load(state + d), inverse));
}
