/* Where cells lie in a page, and which of them a row sees. */
#ifndef KVALET_POOL_H
#define KVALET_POOL_H

#include "kvalet.h"
#include "simd.h"

/* K of a page: [dim][32 cells] */
INLINE f16 *page_k(const kvalet_attention *a, int32_t page, int kv_head) {
    const kvalet_pool *pool = a->pool;
    int64_t head_cells = (int64_t)pool->head_dim * KVALET_PAGE_CELLS;
    return (f16 *)(pool->base + page * pool->page_bytes) +
           (2 * (int64_t)a->layer * pool->num_kv_heads + kv_head) * head_cells;
}

/* V of a page: [32 cells][dim] */
INLINE f16 *page_v(const kvalet_attention *a, int32_t page, int kv_head) {
    return page_k(a, page, kv_head + a->pool->num_kv_heads);
}

INLINE const int32_t *row_table(const kvalet_batch *batch, int row) {
    return batch->tables + (int64_t)batch->row_seq[row] * batch->table_stride;
}

/* The row sees cells first_cell <= cell < end_cell. A window ends with the row's own cell. */
INLINE int end_cell(const kvalet_attention *a, int row) {
    return a->batch->row_end[row];
}

INLINE int first_cell(const kvalet_attention *a, int row) {
    int after_own = a->batch->row_cell[row] + 1;
    return a->window > 0 && after_own > a->window ? after_own - a->window : 0;
}

#endif
