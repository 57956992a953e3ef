/* v16 as a pair of AVX2 registers: lanes 0-7 and 8-15. */
#include <immintrin.h>

#define TILE_QUERIES 6
#define V16_REGISTERS 8

typedef struct { __m256 lo, hi; } v16;

#define PAIR(expression_lo, expression_hi) ((v16){(expression_lo), (expression_hi)})

INLINE v16 v16_set1(float x) { return PAIR(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
INLINE v16 v16_load(const float *p) { return PAIR(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
INLINE v16 v16_load_f16(const f16 *p) {
    return PAIR(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}
INLINE v16 v16_fma(v16 a, v16 b, v16 c) {
    return PAIR(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}
INLINE v16 v16_add(v16 a, v16 b) {
    return PAIR(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi));
}
INLINE v16 v16_sub(v16 a, v16 b) {
    return PAIR(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi));
}
INLINE v16 v16_mul(v16 a, v16 b) {
    return PAIR(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi));
}
INLINE v16 v16_div(v16 a, v16 b) {
    return PAIR(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi));
}
INLINE v16 v16_max(v16 a, v16 b) {
    return PAIR(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi));
}
INLINE v16 v16_abs(v16 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return PAIR(_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi));
}
INLINE v16 v16_copysign(v16 a, v16 b) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    v16 m = v16_abs(a);
    return PAIR(_mm256_or_ps(m.lo, _mm256_and_ps(sign, b.lo)),
                _mm256_or_ps(m.hi, _mm256_and_ps(sign, b.hi)));
}
INLINE v16 v16_select_lt(v16 a, v16 b, v16 x, v16 y) {
    return PAIR(_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
                _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)));
}
INLINE __m256 lanes_within(int first, int end) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i not_before = _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(first - 1));
    return _mm256_castsi256_ps(
        _mm256_and_si256(not_before, _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane)));
}
INLINE v16 v16_keep(v16 x, int first, int end, v16 other) {
    return PAIR(_mm256_blendv_ps(other.lo, x.lo, lanes_within(first, end)),
                _mm256_blendv_ps(other.hi, x.hi, lanes_within(first - 8, end - 8)));
}
INLINE __m256 pow2_of_low_bits(__m256 a) {
    __m256i shifted = _mm256_slli_epi32(_mm256_castps_si256(a), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(shifted, _mm256_set1_epi32(0x3f800000)));
}
INLINE v16 v16_pow2_of_low_bits(v16 a) {
    return PAIR(pow2_of_low_bits(a.lo), pow2_of_low_bits(a.hi));
}
INLINE void v16_store(float *p, v16 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
INLINE void v16_store_f16(f16 *p, v16 a) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
INLINE uint32_t v16_mask_ge(v16 a, v16 b) {
    uint32_t lo = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ));
    uint32_t hi = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ));
    return lo | hi << 8;
}

#define REDUCE(name, op256, op128, op_ss)                                               \
    INLINE float name(v16 a) {                                                          \
        __m256 b = op256(a.lo, a.hi);                                                   \
        __m128 c = op128(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));       \
        c = op128(c, _mm_movehl_ps(c, c));                                              \
        return _mm_cvtss_f32(op_ss(c, _mm_movehdup_ps(c)));                             \
    }
REDUCE(v16_reduce_add, _mm256_add_ps, _mm_add_ps, _mm_add_ss)
REDUCE(v16_reduce_max, _mm256_max_ps, _mm_max_ps, _mm_max_ss)
#undef REDUCE
#undef PAIR
