/* Context shift: the keys of whole pages, of layers with one rope, turned to other positions. */
#include "kvalet.h"
#include "simd.h"

static void rotate_pair(f16 *first, f16 *second, v16 cosine, v16 sine) {
    for (int cell = 0; cell < KVALET_PAGE_CELLS; cell += 16) {
        v16 x = v16_load_f16(first + cell), y = v16_load_f16(second + cell);
        v16_store_f16(first + cell, v16_sub(v16_mul(x, cosine), v16_mul(y, sine)));
        v16_store_f16(second + cell, v16_add(v16_mul(x, sine), v16_mul(y, cosine)));
    }
}

static void rotate_head(f16 *k, const float *cosines, const float *sines, int num_pairs,
                        int is_split) {
    for (int pair = 0; pair < num_pairs; pair++) {
        int first = is_split ? pair : 2 * pair, second = first + (is_split ? num_pairs : 1);
        rotate_pair(k + first * KVALET_PAGE_CELLS, k + second * KVALET_PAGE_CELLS,
                    v16_set1(cosines[pair]), v16_set1(sines[pair]));
    }
}

void kvalet_rotate_keys(const kvalet_pool *pool, const int32_t *pages, int32_t num_pages,
                        const int32_t *layers, int32_t num_layers, const float *cosines,
                        const float *sines, int32_t num_pairs, int32_t is_split) {
    int64_t head_cells = (int64_t)pool->head_dim * KVALET_PAGE_CELLS;
    for (int32_t i = 0; i < num_pages; i++) {
        f16 *page = (f16 *)(pool->base + pages[i] * pool->page_bytes);
        for (int32_t j = 0; j < num_layers; j++) {
            f16 *k = page + 2 * (int64_t)layers[j] * pool->num_kv_heads * head_cells;
            for (int64_t head = 0; head < pool->num_kv_heads; head++)
                rotate_head(k + head * head_cells, cosines, sines, num_pairs, is_split);
        }
    }
}
