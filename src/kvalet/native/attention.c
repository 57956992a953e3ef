/* Rows of a step to attention outputs: items of work, taken by whichever thread is free. */
#include "chunk.h"
#include "work.h"

/* Queries of the block's rows for heads first_head .. first_head + num_heads of one kv head. */
static void load_queries(const kvalet_attention *a, const float *q, const block *b, int kv_head,
                         int first_head, int num_heads, queries *qs) {
    int head_dim = a->pool->head_dim;
    qs->a = a;
    qs->table = row_table(a->batch, b->row);
    qs->kv_head = kv_head;
    qs->num = b->num_rows * num_heads;
    for (int i = 0; i < qs->num; i++) {
        int row = b->row + i / num_heads, head = first_head + i % num_heads;
        qs->first[i] = first_cell(a, row);
        qs->end[i] = end_cell(a, row);
        pack_query(qs, i, q + ((int64_t)row * a->num_heads + head) * head_dim);
    }
}

static void attend_split(const kvalet_attention *a, const block *b, const queries *qs,
                         int first_head, int chunk) {
    int num_heads = qs->num / b->num_rows;
    float *results[MAX_QUERIES];
    for (int i = 0; i < qs->num; i++)
        results[i] =
            block_partial(a, b, b->row + i / num_heads, first_head + i % num_heads, chunk);
    attend_chunk(qs, chunk, results);
}

static void attend_whole(const kvalet_attention *a, const block *b, const queries *qs,
                         int first_head, float *out) {
    int head_dim = a->pool->head_dim, num_heads = qs->num / b->num_rows;
    _Alignas(64) float memory[2 * MAX_QUERIES * (KVALET_MAX_HEAD_DIM + 16)];
    float *results[MAX_QUERIES], *states[MAX_QUERIES];
    for (int i = 0; i < qs->num; i++) {
        results[i] = memory + 2 * i * (head_dim + 16);
        states[i] = results[i] + head_dim + 16;
        fold_start(states[i], head_dim, a->sinks ? a->sinks + first_head + i % num_heads : NULL);
    }
    for (int chunk = b->first_chunk; chunk < b->first_chunk + b->num_chunks; chunk++) {
        attend_chunk(qs, chunk, results);
        for (int i = 0; i < qs->num; i++)
            if (sees_chunk(qs, i, chunk))
                fold_chunk(states[i], results[i], head_dim);
    }
    for (int i = 0; i < qs->num; i++) {
        int64_t row = b->row + i / num_heads, head = first_head + i % num_heads;
        fold_finish(states[i], head_dim, out + (row * a->num_heads + head) * head_dim);
    }
}

static void attend_item(const kvalet_attention *a, const float *q, float *out, const block *b,
                        int item) {
    int group = a->num_heads / a->pool->num_kv_heads;
    int chunks_of_head = b->partials ? b->num_chunks : 1;
    int kv_head = item / chunks_of_head, chunk = b->first_chunk + item % chunks_of_head;
    for (int head = 0; head < group; head += MAX_QUERIES) {
        int num_heads = group - head < MAX_QUERIES ? group - head : MAX_QUERIES;
        queries qs;
        load_queries(a, q, b, kv_head, kv_head * group + head, num_heads, &qs);
        if (b->partials)
            attend_split(a, b, &qs, kv_head * group + head, chunk);
        else
            attend_whole(a, b, &qs, kv_head * group + head, out);
    }
}

void kvalet_attend_rows(const kvalet_attention *a, const float *q, float *out, int width, int ith,
                        int nth) {
    (void)nth;
    int64_t row_floats = (int64_t)a->num_heads * a->pool->head_dim;
    int num_rows = a->batch->num_rows;
    if (ith == 0)
        memset(out + num_rows * row_floats, 0,
               (size_t)((width - num_rows) * row_floats) * sizeof(float));
    block b = {0};
    int more = next_block(a, &b);
    while (more) {
        int64_t item = take_item(a);
        while (more && item >= b.first_item + b.num_items)
            more = next_block(a, &b);
        if (more)
            attend_item(a, q, out, &b, (int)(item - b.first_item));
    }
}

static void fold_row(const kvalet_attention *a, const block *b, int row, int head, float *out) {
    int head_dim = a->pool->head_dim;
    int first = first_cell(a, row) / KVALET_CHUNK_CELLS;
    int last = (end_cell(a, row) - 1) / KVALET_CHUNK_CELLS;
    float state[KVALET_MAX_HEAD_DIM + 2];
    fold_start(state, head_dim, a->sinks ? a->sinks + head : NULL);
    for (int chunk = first; chunk <= last; chunk++)
        fold_chunk(state, block_partial(a, b, row, head, chunk), head_dim);
    fold_finish(state, head_dim, out + ((int64_t)row * a->num_heads + head) * head_dim);
}

void kvalet_fold_rows(const kvalet_attention *a, float *out, int ith, int nth) {
    block b = {0};
    while (next_block(a, &b)) {
        if (!b.partials)
            continue;
        for (int i = 0; i < b.num_rows * a->num_heads; i++)
            if (i % nth == ith)
                fold_row(a, &b, b.row + i / a->num_heads, i % a->num_heads, out);
    }
}
