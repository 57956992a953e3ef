/* Attention of a few queries to one chunk, and the fold that merges chunks.
 *
 * A result is head_dim weighted V, then the max of the scores, then the sum of the weights. It
 * depends on the query and on the cells it sees, not on the other queries computed beside it.
 */
#ifndef KVALET_CHUNK_H
#define KVALET_CHUNK_H

#include "pool.h"

#define MAX_QUERIES 24

/* Queries of one sequence and one kv head: each a (row, head). They share loads of K and V. */
typedef struct queries {
    const kvalet_attention *a;
    const int32_t *table;
    int kv_head;
    int num;
    int first[MAX_QUERIES], end[MAX_QUERIES]; /* cells each sees */
    float packed[MAX_QUERIES * KVALET_MAX_HEAD_DIM]; /* tile by tile, [dim][queries of the tile] */
} queries;

/* Puts the query vector of head_dim floats in its place. Needs `num`. */
void pack_query(queries *qs, int i, const float *q);

INLINE int sees_chunk(const queries *qs, int i, int chunk) {
    return qs->first[i] < (chunk + 1) * KVALET_CHUNK_CELLS &&
           qs->end[i] > chunk * KVALET_CHUNK_CELLS;
}

/* results[i]: where query i's result goes. Queries that see nothing of the chunk are left out. */
void attend_chunk(const queries *qs, int chunk, float *const *results);

/* A fold starts with nothing or, where there are sinks, with the sink's score and no V. */
void fold_start(float *state, int head_dim, const float *sink);
void fold_chunk(float *state, const float *result, int head_dim);
void fold_finish(const float *state, int head_dim, float *out);

#endif
