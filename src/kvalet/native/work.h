/* How a step's rows are cut into work items that threads take from a counter.
 *
 * Every thread walks the same blocks: the cut depends on the batch alone, never on timing or on the
 * thread count. A block is some adjacent rows of one sequence. A whole block has one item for each
 * kv head; a split one has one for each kv head and chunk, and room in the partials.
 */
#ifndef KVALET_WORK_H
#define KVALET_WORK_H

#include "kvalet.h"

typedef struct block {
    int row, num_rows;
    int first_chunk, num_chunks; /* those that any of the rows sees */
    int64_t first_item, num_items;
    float *partials;             /* [num_rows][num_heads][num_chunks][head_dim + 2]; NULL: whole */
    int64_t partials_used;       /* up to and with this block */
} block;

/* Moves on from the block given (all zero: to the first); 0 if there is none. */
int next_block(const kvalet_attention *a, block *b);

/* The caller is the only one that gets this item of the layer. */
int64_t take_item(const kvalet_attention *a);

float *block_partial(const kvalet_attention *a, const block *b, int row, int head, int chunk);

#endif
