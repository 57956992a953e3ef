/* What sampling needs of a row of logits. NaN counts as less than -inf throughout. */
#include <stdlib.h>

#include "kvalet.h"
#include "simd.h"

#define HEAP_MOST 1024     /* beyond this many, sorting everything is faster */
#define RADIX_BITS 11
#define RADIX (1 << RADIX_BITS)

void kvalet_penalize(float *logits, int32_t num_vocab, const int32_t *ids, const int32_t *counts,
                     int32_t n, float repeat, float frequency, float presence) {
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= num_vocab)
            continue;
        float x = logits[ids[i]];
        x = x <= 0.0f ? x * repeat : x / repeat;
        logits[ids[i]] = x - ((float)counts[i] * frequency + presence);
    }
}

/* Sixteen logits from i on; what lies behind the end is -inf. */
INLINE v16 logits_at(const float *logits, int32_t num_vocab, int32_t i) {
    if (i + 16 <= num_vocab)
        return v16_load(logits + i);
    float lanes[16];
    for (int j = 0; j < 16; j++)
        lanes[j] = i + j < num_vocab ? logits[i + j] : -INFINITY;
    return v16_load(lanes);
}

static float largest(const float *logits, int32_t num_vocab) {
    v16 max = v16_set1(-INFINITY);
    for (int32_t i = 0; i < num_vocab; i += 16)
        max = v16_max(logits_at(logits, num_vocab, i), max); /* a NaN on the left is dropped */
    return v16_reduce_max(max);
}

int32_t kvalet_argmax(const float *logits, int32_t num_vocab) {
    v16 max = v16_set1(largest(logits, num_vocab));
    for (int32_t i = 0; i < num_vocab; i += 16) {
        uint32_t found = v16_mask_ge(logits_at(logits, num_vocab, i), max);
        if (found && i + __builtin_ctz(found) < num_vocab)
            return i + __builtin_ctz(found);
    }
    return 0; /* all NaN */
}

double kvalet_logsumexp(const float *logits, int32_t num_vocab) {
    float max = largest(logits, num_vocab);
    if (isinf(max))
        return max;
    double total = 0.0;
    for (int32_t block = 0; block < num_vocab; block += 256) {
        v16 sum = v16_set1(0.0f);
        for (int32_t i = block; i < block + 256 && i < num_vocab; i += 16) {
            v16 x = v16_sub(logits_at(logits, num_vocab, i), v16_set1(max));
            sum = v16_add(sum, v16_exp(v16_max(x, v16_set1(-INFINITY))));
        }
        total += v16_reduce_add(sum);
    }
    return max + log(total);
}

/* One number that orders (logit, id): larger is better, equal logits by lower id. */
INLINE uint64_t rank_of(float x, int32_t id) {
    int32_t bits;
    x += 0.0f; /* -0 is 0 */
    memcpy(&bits, &x, 4);
    uint32_t key = (uint32_t)bits ^ (bits < 0 ? 0xffffffffu : 0x80000000u);
    return (uint64_t)(x == x ? key : 0) << 32 | (uint32_t)~id;
}

INLINE int32_t id_of(uint64_t rank) { return (int32_t)~(uint32_t)rank; }

static void write_out(const float *logits, const uint64_t *ranks, int32_t n, int32_t *ids,
                      float *values) {
    for (int32_t i = 0; i < n; i++) {
        ids[i] = id_of(ranks[i]);
        values[i] = logits[ids[i]] == logits[ids[i]] ? logits[ids[i]] : -INFINITY;
    }
}

/* The least rank is at the root. */
static void sift_down(uint64_t *heap, int32_t n, int32_t i, uint64_t rank) {
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (rank <= heap[child])
            break;
        heap[i] = heap[child];
    }
    heap[i] = rank;
}

static float threshold_of(const float *logits, uint64_t rank) {
    float x = logits[id_of(rank)];
    return x == x ? x : -INFINITY;
}

/* k < num_vocab */
static void top_by_heap(const float *logits, int32_t num_vocab, int32_t k, uint64_t *heap) {
    for (int32_t i = 0; i < k; i++)
        heap[i] = rank_of(logits[i], i);
    for (int32_t i = k / 2 - 1; i >= 0; i--)
        sift_down(heap, k, i, heap[i]);
    float threshold = threshold_of(logits, heap[0]);
    for (int32_t i = k; i < num_vocab; i += 16) {
        uint32_t found =
            v16_mask_ge(logits_at(logits, num_vocab, i), v16_set1(threshold));
        for (; found; found &= found - 1) {
            int32_t id = i + __builtin_ctz(found);
            if (id < num_vocab && rank_of(logits[id], id) > heap[0])
                sift_down(heap, k, 0, rank_of(logits[id], id));
        }
        threshold = threshold_of(logits, heap[0]);
    }
    for (int32_t n = k - 1; n > 0; n--) { /* the least goes last */
        uint64_t last = heap[n];
        heap[n] = heap[0];
        sift_down(heap, n, 0, last);
    }
}

static void radix_pass(const uint64_t *from, uint64_t *to, int32_t n, int shift) {
    int32_t start[RADIX + 1] = {0};
    for (int32_t i = 0; i < n; i++) /* complemented: descending */
        start[(~from[i] >> shift & (RADIX - 1)) + 1]++;
    for (int32_t d = 0; d < RADIX; d++)
        start[d + 1] += start[d];
    for (int32_t i = 0; i < n; i++)
        to[start[~from[i] >> shift & (RADIX - 1)]++] = from[i];
}

/* Passes are stable and the ids start in order, so only the logit's 32 bits are sorted. */
static void sort_all(uint64_t *ranks, uint64_t *spare, int32_t n) {
    radix_pass(ranks, spare, n, 32);
    radix_pass(spare, ranks, n, 32 + RADIX_BITS);
    radix_pass(ranks, spare, n, 32 + 2 * RADIX_BITS);
}

static int32_t top_by_sorting(const float *logits, int32_t num_vocab, int32_t k, int32_t *ids,
                              float *values) {
    uint64_t *ranks = malloc(2 * (size_t)num_vocab * sizeof *ranks);
    if (!ranks)
        return -1;
    for (int32_t i = 0; i < num_vocab; i++)
        ranks[i] = rank_of(logits[i], i);
    sort_all(ranks, ranks + num_vocab, num_vocab);
    write_out(logits, ranks + num_vocab, k, ids, values);
    free(ranks);
    return k;
}

int32_t kvalet_top_k(const float *logits, int32_t num_vocab, int32_t k, int32_t *ids,
                     float *values) {
    if (k <= 0 || k > num_vocab)
        k = num_vocab;
    if (k > HEAP_MOST || k == num_vocab)
        return top_by_sorting(logits, num_vocab, k, ids, values);
    uint64_t heap[HEAP_MOST];
    top_by_heap(logits, num_vocab, k, heap);
    write_out(logits, heap, k, ids, values);
    return k;
}
