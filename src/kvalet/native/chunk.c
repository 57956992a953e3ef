#include "chunk.h"

#define CHUNK KVALET_CHUNK_CELLS
#define PAGE KVALET_PAGE_CELLS

/* Scores and then weights of one chunk, per query along its cells. */
typedef struct chunk_weights {
    float of[MAX_QUERIES][CHUNK];
    int first[MAX_QUERIES], end[MAX_QUERIES]; /* visible cells, counted from the chunk's start */
} chunk_weights;

static inline int min_int(int a, int b) { return a < b ? a : b; }
static inline int max_int(int a, int b) { return a > b ? a : b; }
static inline int clamp(int x, int low, int high) { return min_int(max_int(x, low), high); }

static inline int tile_size(const queries *qs, int tile) {
    return min_int(TILE_QUERIES, qs->num - tile);
}

void pack_query(queries *qs, int i, const float *q) {
    int head_dim = qs->a->pool->head_dim;
    int tile = i - i % TILE_QUERIES, n = tile_size(qs, tile);
    float *to = qs->packed + (int64_t)tile * head_dim + (i - tile);
    for (int d = 0; d < head_dim; d++)
        to[(int64_t)d * n] = q[d];
}

/* Most vectors a tile of n queries can keep in registers side by side. */
INLINE int vectors_beside(int n) {
    return 4 * n <= TILE_ACCUMULATORS ? 4 : 2 * n <= TILE_ACCUMULATORS ? 2 : 1;
}

/* q.k of n queries and `width` vectors of cells; each product is summed over dim in order. */
INLINE void score_cells(const int n, const int width, const f16 *k, const float *q, int head_dim,
                        float *scores) {
    v16 sum[TILE_ACCUMULATORS];
    UNROLL
    for (int i = 0; i < n * width; i++)
        sum[i] = v16_set1(0.0f);
    for (int d = 0; d < head_dim; d++, k += PAGE, q += n) {
        UNROLL
        for (int j = 0; j < width; j++) {
            v16 cells = v16_load_f16(k + 16 * j);
            UNROLL
            for (int i = 0; i < n; i++)
                sum[i * width + j] = v16_fma(cells, v16_set1(q[i]), sum[i * width + j]);
        }
    }
    UNROLL
    for (int i = 0; i < n; i++)
        UNROLL
        for (int j = 0; j < width; j++)
            v16_store(scores + i * CHUNK + 16 * j, sum[i * width + j]);
}

INLINE void score_page(const int n, const f16 *k, const float *q, int head_dim, float *scores) {
    const int width = min_int(vectors_beside(n), 2);
    for (int c = 0; c < PAGE; c += 16 * width)
        score_cells(n, width, k + c, q, head_dim, scores + c);
}

/* Adds weight * V of cells [first, end) of a page to `width` vectors of n results, in cell order. */
INLINE void weigh_dims(const int n, const int width, const f16 *v, int head_dim,
                       const float *weights, int first, int end, float *const *results, int d) {
    v16 sum[TILE_ACCUMULATORS];
    UNROLL
    for (int i = 0; i < n; i++)
        UNROLL
        for (int j = 0; j < width; j++)
            sum[i * width + j] = v16_load(results[i] + d + 16 * j);
    for (int c = first; c < end; c++) {
        UNROLL
        for (int j = 0; j < width; j++) {
            v16 dims = v16_load_f16(v + (int64_t)c * head_dim + d + 16 * j);
            UNROLL
            for (int i = 0; i < n; i++)
                sum[i * width + j] =
                    v16_fma(dims, v16_set1(weights[i * CHUNK + c]), sum[i * width + j]);
        }
    }
    UNROLL
    for (int i = 0; i < n; i++)
        UNROLL
        for (int j = 0; j < width; j++)
            v16_store(results[i] + d + 16 * j, sum[i * width + j]);
}

INLINE void weigh_page(const int n, const f16 *v, int head_dim, const float *weights, int first,
                       int end, float *const *results) {
    const int width = vectors_beside(n);
    int d = 0;
    for (; d + 16 * width <= head_dim; d += 16 * width)
        weigh_dims(n, width, v, head_dim, weights, first, end, results, d);
    for (; d < head_dim; d += 16)
        weigh_dims(n, 1, v, head_dim, weights, first, end, results, d);
}

/* A tile's size must be a constant for its sums to live in registers. */
#if TILE_QUERIES == 12
#define FOR_TILE_SIZES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#else
#define FOR_TILE_SIZES(X) X(1) X(2) X(3) X(4) X(5) X(6)
#endif

static void score_tile(int n, const f16 *k, const float *q, int head_dim, float *scores) {
    switch (n) {
#define SCORE(N) case N: score_page(N, k, q, head_dim, scores); break;
        FOR_TILE_SIZES(SCORE)
#undef SCORE
    }
}

static void weigh_tile(int n, const f16 *v, int head_dim, const float *weights, int first, int end,
                       float *const *results) {
    switch (n) {
#define WEIGH(N) case N: weigh_page(N, v, head_dim, weights, first, end, results); break;
        FOR_TILE_SIZES(WEIGH)
#undef WEIGH
    }
}

/* Scores become weights exp(score - max); cells the query does not see weigh nothing. */
static void softmax(const kvalet_attention *a, float *w, int first, int end, float *max_sum) {
    const v16 nothing = v16_set1(-INFINITY), scale = v16_set1(a->scale);
    const v16 cap = v16_set1(a->softcap);
    int start = first - first % 16;
    v16 max = nothing, sum = v16_set1(0.0f);
    for (int c = start; c < end; c += 16) {
        v16 x = v16_mul(v16_load(w + c), scale);
        if (a->softcap != 0.0f)
            x = v16_mul(cap, v16_tanh(v16_div(x, cap)));
        x = v16_keep(x, first - c, end - c, nothing);
        v16_store(w + c, x);
        max = v16_max(max, x);
    }
    max_sum[0] = v16_reduce_max(max);
    v16 shift = v16_set1(max_sum[0] == -INFINITY ? 0.0f : max_sum[0]); /* -inf less -inf is NaN */
    for (int c = start; c < end; c += 16) {
        v16 x = v16_exp(v16_sub(v16_load(w + c), shift));
        v16_store(w + c, x);
        sum = v16_add(sum, x);
    }
    max_sum[1] = v16_reduce_add(sum);
}

/* Cells of the page (counted from its start) that queries tile .. tile + n all see go through
 * together; before and after them each query takes its own alone. So a cell is never multiplied
 * into the result of a query that does not see it, and each result is summed in cell order. */
static void weigh_visible(const chunk_weights *w, int tile, int n, const f16 *v, int head_dim,
                          int page_start, float *const *results) {
    int first[TILE_QUERIES], end[TILE_QUERIES], common_first = 0, common_end = PAGE;
    for (int i = 0; i < n; i++) {
        first[i] = clamp(w->first[tile + i] - page_start, 0, PAGE);
        end[i] = clamp(w->end[tile + i] - page_start, 0, PAGE);
        common_first = max_int(common_first, first[i]);
        common_end = min_int(common_end, end[i]);
    }
    common_end = max_int(common_first, common_end);
    for (int i = 0; i < n; i++)
        weigh_tile(1, v, head_dim, w->of[tile + i] + page_start, first[i],
                   min_int(common_first, end[i]), results + tile + i);
    weigh_tile(n, v, head_dim, w->of[tile] + page_start, common_first, common_end, results + tile);
    for (int i = 0; i < n; i++)
        weigh_tile(1, v, head_dim, w->of[tile + i] + page_start, max_int(common_end, first[i]),
                   end[i], results + tile + i);
}

/* Visible part of the chunk for each query; returns how many pages of it any of them sees. */
static void clip_to_chunk(const queries *qs, int chunk, chunk_weights *w, int *first_page,
                          int *end_page) {
    int start = chunk * CHUNK, first = CHUNK, end = 0;
    for (int i = 0; i < qs->num; i++) {
        w->first[i] = clamp(qs->first[i] - start, 0, CHUNK);
        w->end[i] = clamp(qs->end[i] - start, 0, CHUNK);
        first = min_int(first, w->first[i]);
        end = max_int(end, w->end[i]);
    }
    *first_page = first / PAGE;
    *end_page = (end + PAGE - 1) / PAGE;
}

void attend_chunk(const queries *qs, int chunk, float *const *results) {
    const kvalet_attention *a = qs->a;
    const int32_t *pages = qs->table + chunk * (CHUNK / PAGE);
    int head_dim = a->pool->head_dim, first_page, end_page;
    chunk_weights w;
    clip_to_chunk(qs, chunk, &w, &first_page, &end_page);

    for (int p = first_page; p < end_page; p++)
        for (int tile = 0; tile < qs->num; tile += TILE_QUERIES)
            score_tile(tile_size(qs, tile), page_k(a, pages[p], qs->kv_head),
                       qs->packed + (int64_t)tile * head_dim, head_dim, w.of[tile] + p * PAGE);
    for (int i = 0; i < qs->num; i++)
        if (sees_chunk(qs, i, chunk)) {
            memset(results[i], 0, (size_t)head_dim * sizeof(float));
            softmax(a, w.of[i], w.first[i], w.end[i], results[i] + head_dim);
        }
    for (int p = first_page; p < end_page; p++)
        for (int tile = 0; tile < qs->num; tile += TILE_QUERIES)
            weigh_visible(&w, tile, tile_size(qs, tile), page_v(a, pages[p], qs->kv_head),
                          head_dim, p * PAGE, results);
}
