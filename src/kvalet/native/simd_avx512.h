/* v16 as one AVX-512 register. */
#include <immintrin.h>

#define TILE_QUERIES 12
#define V16_REGISTERS 32

typedef __m512 v16;

INLINE v16 v16_set1(float x) { return _mm512_set1_ps(x); }
INLINE v16 v16_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE v16 v16_load_f16(const f16 *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
INLINE v16 v16_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
INLINE v16 v16_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
INLINE v16 v16_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
INLINE v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
INLINE v16 v16_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
INLINE v16 v16_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
INLINE v16 v16_abs(v16 a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
INLINE v16 v16_copysign(v16 a, v16 sign) {
    return _mm512_or_ps(v16_abs(a), _mm512_and_ps(_mm512_set1_ps(-0.0f), sign));
}
INLINE v16 v16_select_lt(v16 a, v16 b, v16 x, v16 y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
INLINE uint32_t lanes_below(int end) {
    return end <= 0 ? 0 : end >= 16 ? 0xffff : (1u << end) - 1;
}
INLINE v16 v16_keep(v16 x, int first, int end, v16 other) {
    return _mm512_mask_blend_ps((__mmask16)(lanes_below(end) & ~lanes_below(first)), other, x);
}
INLINE v16 v16_pow2_of_low_bits(v16 a) {
    __m512i shifted = _mm512_slli_epi32(_mm512_castps_si512(a), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_set1_epi32(0x3f800000)));
}
INLINE void v16_store(float *p, v16 a) { _mm512_storeu_ps(p, a); }
INLINE void v16_store_f16(f16 *p, v16 a) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
INLINE uint32_t v16_mask_ge(v16 a, v16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }

#define REDUCE(name, op256, op128, op_ss)                                               \
    INLINE float name(v16 a) {                                                          \
        __m256 b = op256(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));      \
        __m128 c = op128(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));       \
        c = op128(c, _mm_movehl_ps(c, c));                                              \
        return _mm_cvtss_f32(op_ss(c, _mm_movehdup_ps(c)));                             \
    }
REDUCE(v16_reduce_add, _mm256_add_ps, _mm_add_ps, _mm_add_ss)
REDUCE(v16_reduce_max, _mm256_max_ps, _mm_max_ps, _mm_max_ss)
#undef REDUCE
