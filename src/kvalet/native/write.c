/* New cells: K and V of the step's rows, rounded to f16, into their pages. */
#include "pool.h"

static void write_row(const kvalet_attention *a, const float *k, const float *v, int row,
                      int kv_head) {
    int head_dim = a->pool->head_dim, index = a->batch->row_cell[row];
    int32_t page = row_table(a->batch, row)[index / KVALET_PAGE_CELLS];
    int cell = index % KVALET_PAGE_CELLS;
    f16 *k_column = page_k(a, page, kv_head) + cell;
    f16 *v_row = page_v(a, page, kv_head) + (int64_t)cell * head_dim;
    for (int d = 0; d < head_dim; d += 16) {
        f16 rounded[16];
        v16_store_f16(v_row + d, v16_load(v + d));
        v16_store_f16(rounded, v16_load(k + d));
        for (int i = 0; i < 16; i++)
            k_column[(d + i) * KVALET_PAGE_CELLS] = rounded[i];
    }
}

void kvalet_write_rows(const kvalet_attention *a, const float *k, int64_t k_stride, const float *v,
                       int64_t v_stride, int ith, int nth) {
    /* Head by head, so that threads meet in few cache lines: 32 cells of a page share one. */
    int64_t num_rows = a->batch->num_rows, items = num_rows * a->pool->num_kv_heads;
    if (ith == 0)
        a->batch->counters[a->layer] = 0;
    for (int64_t i = items * ith / nth; i < items * (ith + 1) / nth; i++) {
        int64_t row = i % num_rows, kv_head = i / num_rows, at = kv_head * a->pool->head_dim;
        write_row(a, k + row * k_stride + at, v + row * v_stride + at, (int)row, (int)kv_head);
    }
}
