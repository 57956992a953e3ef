/* v16: sixteen f32 lanes, defined once and spelled per instruction set.
 *
 * Every operation is exactly rounded or a bit pattern, and reductions follow one fixed tree, so all
 * spellings give the same bits. This file owns what is built from the primitives; a spelling
 * (simd_*.h) owns the type, the primitives and the register tile its machine can hold.
 */
#ifndef KVALET_SIMD_H
#define KVALET_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline, unused))
#define UNROLL _Pragma("GCC unroll 32")

typedef uint16_t f16;

#if defined(KVALET_AVX512)
#include "simd_avx512.h"
#elif defined(KVALET_AVX2)
#include "simd_avx2.h"
#elif defined(KVALET_NEON)
#include "simd_neon.h"
#else
#include "simd_plain.h"
#endif

/* exp(x) for x <= 0, within 2 ulp; below -87 it is 0, NaN stays NaN. */
INLINE v16 v16_exp(v16 x) {
    const v16 lowest = v16_set1(-87.0f);
    /* Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits, whatever the machine. */
    const v16 magic = v16_set1(12582912.0f);
    v16 y = v16_max(lowest, x); /* the second operand is kept when it is NaN */
    v16 t = v16_fma(y, v16_set1(1.44269504f), magic);
    v16 n = v16_sub(t, magic);
    v16 r = v16_fma(n, v16_set1(-0.693359375f), y);
    r = v16_fma(n, v16_set1(2.12194440e-4f), r);
    v16 p = v16_set1(1.9875691500e-4f);
    p = v16_fma(p, r, v16_set1(1.3981999507e-3f));
    p = v16_fma(p, r, v16_set1(8.3334519073e-3f));
    p = v16_fma(p, r, v16_set1(4.1665795894e-2f));
    p = v16_fma(p, r, v16_set1(1.6666665459e-1f));
    p = v16_fma(p, r, v16_set1(5.0000001201e-1f));
    p = v16_fma(v16_mul(r, r), p, v16_add(r, v16_set1(1.0f)));
    return v16_select_lt(x, lowest, v16_set1(0.0f), v16_mul(p, v16_pow2_of_low_bits(t)));
}

/* tanh(x), absolute error below 2e-7. */
INLINE v16 v16_tanh(v16 x) {
    const v16 one = v16_set1(1.0f);
    v16 e = v16_exp(v16_mul(v16_abs(x), v16_set1(-2.0f)));
    return v16_copysign(v16_div(v16_sub(one, e), v16_add(one, e)), x);
}

INLINE float exp_scalar(float x) {
    float lanes[16];
    v16_store(lanes, v16_exp(v16_set1(x)));
    return lanes[0];
}

#endif
