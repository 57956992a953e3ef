#include "work.h"

#include "chunk.h"
#include "pool.h"

static int rows_of_block(const kvalet_attention *a, int row) {
    const kvalet_batch *batch = a->batch;
    int most = MAX_QUERIES / (a->num_heads / a->pool->num_kv_heads);
    int n = 1;
    while (n < most && row + n < batch->num_rows && batch->row_seq[row + n] == batch->row_seq[row])
        n++;
    return n;
}

/* Decided by what is left of the partials, so the rows in front are the ones split: a batch is
 * either too small to be worth more, or has whole items enough for all threads. */
static void split_if_it_fits(const kvalet_attention *a, block *b) {
    const kvalet_batch *batch = a->batch;
    int64_t floats = (int64_t)b->num_rows * a->num_heads * b->num_chunks * (a->pool->head_dim + 2);
    b->partials = NULL;
    if (b->partials_used + floats <= batch->partials_floats) {
        b->partials = batch->partials + b->partials_used;
        b->partials_used += floats;
    }
}

int next_block(const kvalet_attention *a, block *b) {
    b->row += b->num_rows;
    b->first_item += b->num_items;
    if (b->row >= a->batch->num_rows)
        return 0;
    b->num_rows = rows_of_block(a, b->row);
    b->first_chunk = first_cell(a, b->row) / KVALET_CHUNK_CELLS;
    int last_chunk = (end_cell(a, b->row + b->num_rows - 1) - 1) / KVALET_CHUNK_CELLS;
    b->num_chunks = last_chunk - b->first_chunk + 1;
    split_if_it_fits(a, b);
    b->num_items = (int64_t)a->pool->num_kv_heads * (b->partials ? b->num_chunks : 1);
    return 1;
}

int64_t take_item(const kvalet_attention *a) {
    return __atomic_fetch_add(&a->batch->counters[a->layer], 1, __ATOMIC_RELAXED);
}

float *block_partial(const kvalet_attention *a, const block *b, int row, int head, int chunk) {
    int64_t index = (int64_t)(row - b->row) * a->num_heads + head;
    index = index * b->num_chunks + (chunk - b->first_chunk);
    return b->partials + index * (a->pool->head_dim + 2);
}
