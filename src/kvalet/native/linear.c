/* Linear layers: packed weights times quantised columns.
 *
 * An output is summed over its blocks in their order, by the same operations whatever the number of
 * columns, of threads, or the instruction set: blocks as integers, then scaled and added to f32.
 */
#include "bytes.h"
#include "columns.h"

#define COLUMNS_AT_ONCE 64 /* whose quantised input is meant to stay in a core's cache */
/* Weights that come from memory are asked for this many bytes ahead, where there are columns enough
 * that computing takes as long as reading; for fewer, asking costs more than it brings. */
#define AHEAD 2048
#define AHEAD_COLUMNS 4

typedef struct tile {
    const uint8_t *weights;  /* of one group of rows */
    const uint8_t *columns;  /* the first of the tile's; of FLOATS: f32 */
    int64_t column_stride;   /* bytes */
    int64_t num_in;
} tile;

INLINE b64 codes_of(form f, const uint8_t *quants, int g) {
    if (f.bits == 8)
        return b64_load(quants + 64 * g);
    b64 bytes = b64_load(quants + 64 * (g % 4));
    b64 codes = g < 4 ? b64_low(bytes) : b64_high(bytes);
    if (f.bits == 5)
        codes = b64_fifth(codes, b64_load(quants + 256), g);
    if (f.bits == 6)
        codes = b64_sixth(codes, b64_load(quants + 256 + 64 * (g / 4)), g % 4);
    return f.table ? b64_table(codes, f.table) : codes;
}

INLINE w16 dot_groups(form f, w16 sum, const b64 *codes, const int8_t *x, int first, int end) {
    UNROLL_GROUPS
    for (int g = first; g < end; g++)
        sum = f.is_wide ? w16_dot_wide(sum, codes[g], x + 4 * g) : w16_dot(sum, codes[g], x + 4 * g);
    return sum;
}

/* A block's part of one output column. `scale`, `second`: of the block, or of its halves;
 * `second` is the minimum where there is one. */
INLINE v16 add_block(form f, v16 sum, const b64 *codes, const int8_t *x, const block_scale *s,
                     v16 scale, v16 second) {
    w16 start = f.shift < 0 ? w16_set1(0) : w16_shl(w16_set1(s->minus), f.shift);
    if (f.scales == SUPER_HALVES) {
        w16 half = w16_shl(w16_set1(s->minus_half), f.shift);
        w16 a = dot_groups(f, half, codes, x, 0, 4);
        w16 b = dot_groups(f, w16_sub(start, half), codes, x, 4, 8);
        sum = v16_fma(v16_of_w16(a), v16_mul(scale, v16_set1(s->scale)), sum);
        return v16_fma(v16_of_w16(b), v16_mul(second, v16_set1(s->scale)), sum);
    }
    w16 dot = dot_groups(f, start, codes, x, 0, GROUPS);
    sum = v16_fma(v16_of_w16(dot), v16_mul(scale, v16_set1(s->scale)), sum);
    if (f.scales == SCALE_MIN || f.scales == SUPER_SCALE_MIN)
        sum = v16_fma(second, v16_set1(s->sum), sum);
    return sum;
}

INLINE void read_scales(form f, const uint8_t *header, const uint8_t *scales, v16 *scale,
                        v16 *second) {
    *second = v16_set1(0.0f);
    switch (f.scales) {
    case SCALE:
        *scale = v16_load_f16((const f16 *)scales);
        break;
    case SCALE_MIN:
        *scale = v16_load_f16((const f16 *)scales);
        *second = v16_load_f16((const f16 *)scales + ROWS);
        break;
    case SUPER_SCALE_MIN:
        *scale = v16_mul(v16_load_f16((const f16 *)header), v16_load_u8(scales));
        *second = v16_mul(v16_load_f16((const f16 *)header + ROWS), v16_load_u8(scales + ROWS));
        break;
    case SUPER_HALVES:
        *scale = v16_mul(v16_load_f16((const f16 *)header), v16_load_i8(scales));
        *second = v16_mul(v16_load_f16((const f16 *)header), v16_load_i8(scales + ROWS));
        break;
    default:
        *scale = v16_load_exponents(scales);
    }
}

INLINE void quantised_tile(form f, int num, const tile *t, v16 *sums) {
    const uint8_t *w = t->weights, *header = w;
    for (int64_t block = 0; block < t->num_in / BLOCK; block++) {
        if (has_super(f.scales) && block % SUPER == 0) {
            header = w;
            w += header_bytes(f);
        }
        for (int line = 0; num >= AHEAD_COLUMNS && line < block_bytes(f); line += 64)
            __builtin_prefetch(w + line + AHEAD);
        v16 scale, second;
        b64 codes[GROUPS];
        read_scales(f, header, w, &scale, &second);
        UNROLL_GROUPS
        for (int g = 0; g < GROUPS; g++)
            codes[g] = codes_of(f, w + scale_bytes(f), g);
        UNROLL
        for (int c = 0; c < num; c++) {
            const uint8_t *column = t->columns + c * t->column_stride;
            sums[c] = add_block(f, sums[c], codes, (const int8_t *)column + block * BLOCK,
                                scales_of(column, t->num_in) + block, scale, second);
        }
        w += block_bytes(f);
    }
}

INLINE v16 floats_at(int32_t type, const uint8_t *weights, int64_t i) {
    switch (type) {
    case F32: return v16_load((const float *)weights + i * ROWS);
    case F16: return v16_load_f16((const f16 *)weights + i * ROWS);
    default: return v16_load_bf16((const f16 *)weights + i * ROWS);
    }
}

INLINE void float_tile(int32_t type, int num, const tile *t, v16 *sums) {
    for (int64_t i = 0; i < t->num_in; i++) {
        v16 w = floats_at(type, t->weights, i);
        UNROLL
        for (int c = 0; c < num; c++) {
            const float *column = (const float *)(t->columns + c * t->column_stride);
            sums[c] = v16_fma(w, v16_set1(column[i]), sums[c]);
        }
    }
}

INLINE void type_tile(int32_t type, form f, int num, const tile *t, v16 *sums) {
    v16 inner[TILE_COLUMNS];
    UNROLL
    for (int c = 0; c < num; c++)
        inner[c] = v16_set1(0.0f);
    if (f.scales == FLOATS)
        float_tile(type, num, t, inner);
    else
        quantised_tile(f, num, t, inner);
    UNROLL
    for (int c = 0; c < num; c++)
        sums[c] = inner[c];
}

/* A function for every type and some numbers of columns, so that sums stay in registers. */
#if TILE_COLUMNS == 8
#define WIDER(type)                                                     \
        case 4: type_tile(type, f, 4, t, sums); return 4;               \
        case 8: type_tile(type, f, 8, t, sums); return 8;
#define AT_MOST(num) (num >= 8 ? 8 : num >= 4 ? 4 : num)
#else
#define WIDER(type)
#define AT_MOST(num) (num >= TILE_COLUMNS ? TILE_COLUMNS : num)
#endif
#if TILE_COLUMNS > 1
#define MORE(type)                                                      \
        case 2: type_tile(type, f, 2, t, sums); return 2;               \
        case 3: type_tile(type, f, 3, t, sums); return 3;               \
        WIDER(type)
#else
#define MORE(type)
#endif
#define TILE_OF(type, its_form)                                         \
    static int tile_##type(int num, const tile *t, v16 *sums) {         \
        const form f = its_form;                                        \
        switch (AT_MOST(num)) {                                         \
        MORE(type)                                                      \
        default: type_tile(type, f, 1, t, sums); return 1;              \
        }                                                               \
    }
QUANTISED_TYPES(TILE_OF)
FLOAT_TYPES(TILE_OF)

/* Computes some of the tile's first `num` columns; returns how many. */
typedef int compute_tile(int num, const tile *t, v16 *sums);

static compute_tile *tile_function(int32_t type) {
#define FUNCTION_OF(name, its_form) case name: return tile_##name;
    switch (type) {
        QUANTISED_TYPES(FUNCTION_OF)
        FLOAT_TYPES(FUNCTION_OF)
    }
    return NULL;
}

/* Outputs of one group of rows for some columns, with bias and what is added. */
static void finish(const kvalet_linear *l, int group, int column, int num, const v16 *sums,
                   const float *added, float *out, int64_t out_stride) {
    int first = group * ROWS, rows = l->num_out - first < ROWS ? l->num_out - first : ROWS;
    for (int c = 0; c < num; c++) {
        float lanes[ROWS];
        v16_store(lanes, sums[c]);
        int64_t at = (column + c) * out_stride + first;
        for (int r = 0; r < rows; r++) {
            float y = l->bias ? lanes[r] + l->bias[first + r] : lanes[r];
            out[at + r] = added ? y + added[at + r] : y;
        }
    }
}

static void linear_columns(const kvalet_linear *l, const uint8_t *columns, int first, int num,
                           const float *added, float *out, int64_t out_stride, int first_group,
                           int end_group) {
    form f = form_of(l->type);
    compute_tile *compute = tile_function(l->type);
    int64_t stride = f.scales == FLOATS ? 4 * (int64_t)l->num_in : column_bytes(l->num_in);
    for (int group = first_group; group < end_group; group++)
        for (int c = first, done; c < first + num; c += done) {
            tile t = {l->weights + group * group_bytes(f, l->num_in), columns + c * stride, stride,
                      l->num_in};
            v16 sums[TILE_COLUMNS];
            done = compute(first + num - c, &t, sums);
            finish(l, group, c, done, sums, added, out, out_stride);
        }
}

INLINE int least(int a, int b) { return a < b ? a : b; }
INLINE int most(int a, int b) { return a > b ? a : b; }

/* Threads share the groups of all layers together, each a range of them. */
void kvalet_linear_rows(const kvalet_linear *layers, int num_layers, const uint8_t *columns,
                        const float *added, float *out, int width, int ith, int nth) {
    int groups = 0;
    int64_t out_stride = 0;
    for (int i = 0; i < num_layers; i++) {
        groups += num_groups(layers[i].num_out);
        out_stride += layers[i].num_out;
    }
    int first = (int)((int64_t)groups * ith / nth), end = (int)((int64_t)groups * (ith + 1) / nth);
    for (int c = 0; c < width; c += COLUMNS_AT_ONCE) {
        const float *a = added;
        float *o = out;
        for (int i = 0, start = 0; i < num_layers; i++) {
            int n = num_groups(layers[i].num_out);
            linear_columns(layers + i, columns, c, least(width - c, COLUMNS_AT_ONCE), a, o,
                           out_stride, most(first - start, 0), least(end - start, n));
            start += n;
            o += layers[i].num_out;
            a = a ? a + layers[i].num_out : NULL;
        }
    }
}
