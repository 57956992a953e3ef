#include "chunk.h"

#define CHUNK KVALET_CHUNK_CELLS
#define PAGE KVALET_PAGE_CELLS

/* One chunk as the queries see it. Cells are counted from its start. */
typedef struct chunk_view {
    const f16 *k[CHUNK / PAGE], *v[CHUNK / PAGE]; /* pages first_page .. end_page, one kv head */
    int first_page, end_page;                     /* those that any query sees */
    int first[MAX_QUERIES], end[MAX_QUERIES];     /* cells each query sees */
    float weights[MAX_QUERIES][CHUNK];            /* scores at first */
} chunk_view;

static inline int min_int(int a, int b) { return a < b ? a : b; }
static inline int max_int(int a, int b) { return a > b ? a : b; }
static inline int clamp(int x, int low, int high) { return min_int(max_int(x, low), high); }

static inline int tile_size(const queries *qs, int tile) {
    return min_int(TILE_QUERIES, qs->num - tile);
}

void pack_query(queries *qs, int i, const float *q) {
    int head_dim = qs->a->pool->head_dim;
    int tile = i - i % TILE_QUERIES, n = tile_size(qs, tile);
    float *to = qs->packed + tile * head_dim + (i - tile);
    for (int d = 0; d < head_dim; d++)
        to[d * n] = q[d];
}

/* Most vectors that a tile of n queries can keep in registers: n sums of each and the vector. */
INLINE int vectors_beside(int n) {
    return 4 * (n + 1) < V16_REGISTERS ? 4 : 2 * (n + 1) < V16_REGISTERS ? 2 : 1;
}

/* The inner step of both products: sums[i][j] += factors[i * stride] * x[j]. */
INLINE void add_products(const int n, const int width, v16 *sums, const v16 *x,
                         const float *factors, int stride) {
    UNROLL
    for (int i = 0; i < n; i++) {
        v16 factor = v16_set1(factors[i * stride]);
        UNROLL
        for (int j = 0; j < width; j++)
            sums[i * width + j] = v16_fma(x[j], factor, sums[i * width + j]);
    }
}

INLINE void load_f16(const int width, v16 *x, const f16 *from) {
    UNROLL
    for (int j = 0; j < width; j++)
        x[j] = v16_load_f16(from + 16 * j);
}

/* Pages lie anywhere, so the processor cannot foresee the next one: what is needed soon is asked for
 * line by line while this page's K is read. K and V of a page have the same size. */
INLINE void prefetch_soon(const chunk_view *chunk, int page, int offset) {
    __builtin_prefetch(chunk->v[page] + offset);
    __builtin_prefetch(chunk->k[min_int(page + 1, chunk->end_page - 1)] + offset);
}

/* q.k of n queries and `width` vectors of a page's cells, from c on; summed over dim in order. */
INLINE void score_cells(const int n, const int width, const chunk_view *chunk, int page, int c,
                        const float *q, int head_dim, float *scores) {
    v16 sums[V16_REGISTERS], cells[4];
    UNROLL
    for (int i = 0; i < n * width; i++)
        sums[i] = v16_set1(0.0f);
    for (int d = 0; d < head_dim; d++) {
        prefetch_soon(chunk, page, d * PAGE);
        load_f16(width, cells, chunk->k[page] + d * PAGE + c);
        add_products(n, width, sums, cells, q + d * n, 1);
    }
    UNROLL
    for (int i = 0; i < n * width; i++)
        v16_store(scores + i / width * CHUNK + page * PAGE + c + i % width * 16, sums[i]);
}

INLINE void score_pages(const int n, const chunk_view *chunk, const float *q, int head_dim,
                        float *scores) {
    const int width = min_int(vectors_beside(n), 2);
    for (int page = chunk->first_page; page < chunk->end_page; page++)
        for (int c = 0; c < PAGE; c += 16 * width)
            score_cells(n, width, chunk, page, c, q, head_dim, scores);
}

/* Adds weight * V of cells first .. end to `width` vectors of n results, in cell order. */
INLINE void weigh_dims(const int n, const int width, const chunk_view *chunk, int head_dim,
                       const float *weights, int first, int end, float *const *results, int d) {
    v16 sums[V16_REGISTERS], dims[4];
    UNROLL
    for (int i = 0; i < n * width; i++)
        sums[i] = v16_load(results[i / width] + d + i % width * 16);
    for (unsigned c = (unsigned)first; c < (unsigned)end; c++) {
        load_f16(width, dims, chunk->v[c / PAGE] + (int)(c % PAGE) * head_dim + d);
        add_products(n, width, sums, dims, weights + c, CHUNK);
    }
    UNROLL
    for (int i = 0; i < n * width; i++)
        v16_store(results[i / width] + d + i % width * 16, sums[i]);
}

INLINE void weigh_cells(const int n, const chunk_view *chunk, int head_dim, const float *weights,
                        int first, int end, float *const *results) {
    const int width = vectors_beside(n);
    int d = 0;
    for (; d + 16 * width <= head_dim; d += 16 * width)
        weigh_dims(n, width, chunk, head_dim, weights, first, end, results, d);
    for (; d < head_dim; d += 16)
        weigh_dims(n, 1, chunk, head_dim, weights, first, end, results, d);
}

/* A tile's size must be a constant for its sums to live in registers. */
#if TILE_QUERIES == 12
#define FOR_TILE_SIZES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#else
#define FOR_TILE_SIZES(X) X(1) X(2) X(3) X(4) X(5) X(6)
#endif

static void score_tile(int n, const chunk_view *chunk, const float *q, int head_dim,
                       float *scores) {
    switch (n) {
#define SCORE(N) case N: score_pages(N, chunk, q, head_dim, scores); break;
        FOR_TILE_SIZES(SCORE)
#undef SCORE
    }
}

static void weigh_tile(int n, const chunk_view *chunk, int head_dim, const float *weights,
                       int first, int end, float *const *results) {
    switch (n) {
#define WEIGH(N) case N: weigh_cells(N, chunk, head_dim, weights, first, end, results); break;
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

/* Later queries see later cells, so those that see a given cell are adjacent: a chunk is taken in
 * runs of cells that the same queries see. A cell is never multiplied into the result of a query
 * that does not see it, and each result is summed in cell order. */
static void weigh_visible(const chunk_view *chunk, int tile, int n, int head_dim,
                          float *const *results) {
    const int *first = chunk->first + tile, *end = chunk->end + tile;
    int low = 0, high = 0; /* queries low <= i < high see cell c */
    int c = first[0], stop = end[n - 1];
    while (c < stop) {
        while (high < n && first[high] <= c)
            high++;
        while (low < high && end[low] <= c)
            low++;
        int next = high < n ? min_int(first[high], stop) : stop;
        if (low < high) {
            next = min_int(end[low], next);
            weigh_tile(high - low, chunk, head_dim, chunk->weights[tile + low], c, next,
                       results + tile + low);
        }
        c = next;
    }
}

static void view_chunk(const queries *qs, int index, chunk_view *chunk) {
    int start = index * CHUNK, first = CHUNK, end = 0;
    for (int i = 0; i < qs->num; i++) {
        chunk->first[i] = clamp(qs->first[i] - start, 0, CHUNK);
        chunk->end[i] = clamp(qs->end[i] - start, 0, CHUNK);
        first = min_int(first, chunk->first[i]);
        end = max_int(end, chunk->end[i]);
    }
    chunk->first_page = first / PAGE;
    chunk->end_page = (end + PAGE - 1) / PAGE;
    for (int page = chunk->first_page; page < chunk->end_page; page++) {
        int32_t id = qs->table[start / PAGE + page];
        chunk->k[page] = page_k(qs->a, id, qs->kv_head);
        chunk->v[page] = page_v(qs->a, id, qs->kv_head);
    }
}

void attend_chunk(const queries *qs, int index, float *const *results) {
    int head_dim = qs->a->pool->head_dim;
    chunk_view chunk;
    view_chunk(qs, index, &chunk);
    for (int tile = 0; tile < qs->num; tile += TILE_QUERIES)
        score_tile(tile_size(qs, tile), &chunk, qs->packed + tile * head_dim, head_dim,
                   chunk.weights[tile]);
    for (int i = 0; i < qs->num; i++)
        if (sees_chunk(qs, i, index)) {
            memset(results[i], 0, (size_t)head_dim * sizeof(float));
            softmax(qs->a, chunk.weights[i], chunk.first[i], chunk.end[i], results[i] + head_dim);
        }
    for (int tile = 0; tile < qs->num; tile += TILE_QUERIES)
        weigh_visible(&chunk, tile, tile_size(qs, tile), head_dim, results);
}
