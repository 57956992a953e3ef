/* kvalet's native kernels: what no library has.
 *
 * Every function here gives the same bits for one token whatever else is in the batch, whatever the
 * thread count and wherever its pages lie (ADR 0003). The same source is compiled for several
 * instruction sets; all of them, the plain C one included, give the SAME bits, because a 16-lane
 * vector, its fused operations and its reductions are defined once (simd.h) and only spelled
 * differently.
 *
 * Pool layout. A page holds 32 cells of all layers, contiguous, f16:
 *
 *   page p:  | layer 0: K | layer 0: V | layer 1: K | layer 1: V | ...
 *   K of a layer:  [kv head][dim][32 cells]      V of a layer:  [kv head][32 cells][dim]
 */
#ifndef KVALET_H
#define KVALET_H

#include <stddef.h>
#include <stdint.h>

#define KVALET_ABI 2             /* one more whenever a structure or a signature here changes */
#define KVALET_PAGE_CELLS 32
#define KVALET_CHUNK_CELLS 256   /* positions per attention chunk, counted from 0 */
#define KVALET_MAX_HEAD_DIM 512  /* the caller checks; kernels keep a block of heads on the stack */

/* The pool and what is constant of the model. Lives as long as the pool. */
typedef struct kvalet_pool {
    uint8_t *base;       /* num_pages * page_bytes, 64-byte aligned for speed */
    int64_t page_bytes;
    int32_t num_pages;
    int32_t num_layers;
    int32_t num_kv_heads;
    int32_t head_dim;    /* a multiple of 16, at most KVALET_MAX_HEAD_DIM */
} kvalet_pool;

/* The rows of the step being computed. Arrays are owned by the caller and change between steps;
 * the struct's address does not. Row r is token r of the graph; rows from num_rows up to the graph's
 * width are padding: they write nothing and get zeros as attention output. From one row of a
 * sequence to the next, neither cell nor end falls.
 *
 * Rows whose work is split over threads keep their chunk results in `partials`:
 * num_heads * (head_dim + 2) floats for each row and each 256-position chunk up to its sequence's
 * last row. Rows are split in order while that suffices; it changes speed, never bits. */
typedef struct kvalet_batch {
    int32_t num_rows;
    int32_t num_seqs;
    const int32_t *row_seq;    /* [num_rows] index of the row's sequence in this step; rows of one
                                  sequence are adjacent */
    const int32_t *row_cell;   /* [num_rows] the row's own cell, counted from its sequence's first */
    const int32_t *row_end;    /* [num_rows] the row sees cells before this one, its own included */
    const int32_t *tables;     /* [num_seqs][table_stride] page ids in position order */
    int32_t table_stride;
    int32_t *counters;         /* [num_layers] work items taken so far; write zeroes its layer's */
    float *partials;           /* may be NULL when partials_floats is 0 */
    int64_t partials_floats;
} kvalet_batch;

/* userdata of the graph nodes of one layer */
typedef struct kvalet_attention {
    const kvalet_pool *pool;
    kvalet_batch *batch;
    const float *sinks;   /* [num_heads] attention sinks, or NULL */
    int32_t layer;
    int32_t num_heads;    /* query heads; a multiple of num_kv_heads */
    int32_t window;       /* cells a row sees up to its own, that included; 0: all */
    float scale;          /* multiplies q.k */
    float softcap;        /* 0: none; else softcap * tanh(score / softcap) */
} kvalet_attention;

#pragma GCC visibility push(default)

struct ggml_tensor;

/* Where ggml_tensor keeps `data`, `ne`, `nb` and `src`, in bytes. To be called once, before any graph
 * runs: ggml's headers are not there when this library is built. */
void kvalet_set_tensor_layout(int64_t data, int64_t ne, int64_t nb, int64_t src);

/* Graph nodes, for ggml_custom_4d(..., fn, n_tasks = -1, userdata = kvalet_attention *).
 * All tensors are f32, and contiguous but for those of write, whose rows may lie apart.
 *
 * write:     src[0] = K [head_dim, num_kv_heads, width] (rope applied), src[1] = V, same.
 *            Writes the rows' cells. dst: [1], unused, orders the graph.
 * attend:    src[0] = Q [head_dim * num_heads, width], src[1] = dst of write (for the order).
 *            dst: [head_dim * num_heads, width]. Rows whose work is not split are finished here.
 * fold:      src[0] = dst of attend. dst: the same buffer (ggml_custom_inplace), split rows are
 *            merged into it.
 */
void kvalet_write(struct ggml_tensor *dst, int ith, int nth, void *userdata);
void kvalet_attend(struct ggml_tensor *dst, int ith, int nth, void *userdata);
void kvalet_fold(struct ggml_tensor *dst, int ith, int nth, void *userdata);

/* The same work without a graph, for tests: one layer, called with ith/nth from the test. */
void kvalet_write_rows(const kvalet_attention *a, const float *k, int64_t k_stride, const float *v,
                       int64_t v_stride, int ith, int nth); /* floats from row to row */
void kvalet_attend_rows(const kvalet_attention *a, const float *q, float *out, int width,
                        int ith, int nth);
void kvalet_fold_rows(const kvalet_attention *a, float *out, int ith, int nth);

/* Pages. Plain memory moves, so that one foreign call moves many without the GIL. */
void kvalet_copy_pages(uint8_t *const *dst, const uint8_t *const *src, int64_t bytes, int32_t n);
void kvalet_fill_nan(uint8_t *dst, int64_t bytes); /* f16 NaN in every element */
/* Turn the keys of some layers of `pages` by the angle of each pair of dimensions; the dimensions
 * after 2 * num_pairs stay. is_split: pairs are (i, i + num_pairs), else (2i, 2i + 1). */
void kvalet_rotate_keys(const kvalet_pool *pool, const int32_t *pages, int32_t num_pages,
                        const int32_t *layers, int32_t num_layers, const float *cosines,
                        const float *sines, int32_t num_pairs, int32_t is_split);

/* Packed weights (packed.h); `type` is ggml's number. Bytes for [num_out][num_in]: 0 for a type or
 * a num_in that cannot be packed. */
int64_t kvalet_packed_bytes(int32_t type, int64_t num_in, int64_t num_out);
void kvalet_pack(int32_t type, uint8_t *dst, const uint8_t *src, int64_t num_in, int64_t num_out);

/* Columns (columns.h): quantised inputs of linear layers, [width][kvalet_column_bytes(num_in)], from
 * f32 [width][num_in]. num_in is a multiple of 32. */
int64_t kvalet_column_bytes(int64_t num_in);
void kvalet_quantise_rows(const float *x, uint8_t *columns, int64_t num_in, int width, int ith,
                          int nth);
/* of x / rms(x) * weight */
void kvalet_norm_rows(const float *x, const float *weight, float eps, uint8_t *columns,
                      int64_t num_in, int width, int ith, int nth);
/* of silu(gate) * up; gate_up: f32 [width][2][num_in] */
void kvalet_swiglu_rows(const float *gate_up, uint8_t *columns, int64_t num_in, int width, int ith,
                        int nth);

/* Of float types `columns` is f32 [width][num_in]. */
typedef struct kvalet_linear {
    const uint8_t *weights; /* packed */
    const float *bias;      /* [num_out] or NULL */
    int32_t type, num_in, num_out;
} kvalet_linear;

/* out [width][num_out of all layers, one after the other] = weights * columns + bias + added, which
 * has the shape of out or is NULL. */
void kvalet_linear_rows(const kvalet_linear *layers, int num_layers, const uint8_t *columns,
                        const float *added, float *out, int width, int ith, int nth);

/* Graph nodes of the same, n_tasks = -1. Columns are a tensor i8 [kvalet_column_bytes(num_in), width].
 *
 * quantise, norm:  src[0] = f32 [num_in, width]; userdata = kvalet_input *. dst: columns
 * swiglu:          src[0] = f32 [2 * num_in, width], gate before up. dst: columns
 * linear:          src[0] = columns, or f32 [num_in, width]; src[1] = added, or there is none;
 *                  userdata = kvalet_layers *. dst: f32 [num_out of all, width]
 */
typedef struct kvalet_input {
    const float *weight;
    float eps;
    int32_t num_in;
} kvalet_input;
typedef struct kvalet_layers {
    const kvalet_linear *layers;
    int32_t num_layers;
} kvalet_layers;
void kvalet_quantise(struct ggml_tensor *dst, int ith, int nth, void *userdata);
void kvalet_norm(struct ggml_tensor *dst, int ith, int nth, void *userdata);
void kvalet_swiglu(struct ggml_tensor *dst, int ith, int nth, void *userdata);
void kvalet_linear_node(struct ggml_tensor *dst, int ith, int nth, void *userdata);

/* Sampling, one row of logits. NaN counts as less than -inf. */
/* Penalties as in llama.cpp: for each id in ids[n] (distinct) that occurred counts[i] times,
 * logit = logit <= 0 ? logit * repeat : logit / repeat; then -= count * frequency + presence. */
void kvalet_penalize(float *logits, int32_t num_vocab, const int32_t *ids, const int32_t *counts,
                     int32_t n, float repeat, float frequency, float presence);
/* The k largest, descending, ties by lower id; k <= 0 or >= num_vocab: all of them sorted. A NaN is
 * written as -inf. Returns how many were written, -1 if memory ran out (large k only). */
int32_t kvalet_top_k(const float *logits, int32_t num_vocab, int32_t k, int32_t *ids,
                     float *values);
/* log(sum(exp(logits))) in a fixed order, f64 accumulation; a NaN adds nothing */
double kvalet_logsumexp(const float *logits, int32_t num_vocab);
int32_t kvalet_argmax(const float *logits, int32_t num_vocab); /* lowest id among the largest */

/* KVALET_ABI as it was when this library was compiled. */
int32_t kvalet_abi(void);
/* Name of the instruction set this library was compiled for: "plain", "avx2", "avx512", "neon". */
const char *kvalet_isa(void);
/* Whether this processor runs the library of that name. Asked of the plain library. */
int kvalet_cpu_supports(const char *isa);

#pragma GCC visibility pop

#endif
