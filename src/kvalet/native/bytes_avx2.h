/* b64 and w16 as a pair of AVX2 registers each: rows 0-7 and 8-15. */
#define TILE_COLUMNS 3
#define UNROLL_GROUPS UNROLL

typedef struct { __m256i lo, hi; } b64;
typedef struct { __m256i lo, hi; } w16;

#define BYTES(expression_lo, expression_hi) ((b64){(expression_lo), (expression_hi)})
#define WORDS(expression_lo, expression_hi) ((w16){(expression_lo), (expression_hi)})

INLINE b64 b64_load(const uint8_t *p) {
    return BYTES(_mm256_loadu_si256((const __m256i *)p),
                 _mm256_loadu_si256((const __m256i *)(p + 32)));
}
INLINE b64 masked(b64 x, int8_t mask) {
    const __m256i m = _mm256_set1_epi8(mask);
    return BYTES(_mm256_and_si256(x.lo, m), _mm256_and_si256(x.hi, m));
}
INLINE b64 b64_low(b64 x) { return masked(x, 15); }
/* A shift of 16-bit lanes: what crosses into the other byte is masked away. */
INLINE b64 shifted(b64 x, int left) {
    if (left < 0)
        return BYTES(_mm256_srli_epi16(x.lo, -left), _mm256_srli_epi16(x.hi, -left));
    return BYTES(_mm256_slli_epi16(x.lo, left), _mm256_slli_epi16(x.hi, left));
}
INLINE b64 b64_high(b64 x) { return masked(shifted(x, -4), 15); }
INLINE b64 either(b64 a, b64 b) {
    return BYTES(_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi));
}
INLINE b64 b64_fifth(b64 low, b64 high, int g) {
    return either(low, masked(shifted(high, 4 - g), 16));
}
INLINE b64 b64_sixth(b64 low, b64 high, int g) {
    return either(low, masked(shifted(high, 4 - 2 * g), 48));
}
INLINE b64 b64_table(b64 codes, const uint8_t *table) {
    __m256i entries = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    return BYTES(_mm256_shuffle_epi8(entries, codes.lo), _mm256_shuffle_epi8(entries, codes.hi));
}

INLINE w16 w16_set1(int32_t x) { return WORDS(_mm256_set1_epi32(x), _mm256_set1_epi32(x)); }
INLINE w16 w16_shl(w16 a, int bits) {
    return WORDS(_mm256_slli_epi32(a.lo, bits), _mm256_slli_epi32(a.hi, bits));
}
INLINE w16 w16_add(w16 a, w16 b) {
    return WORDS(_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi));
}
INLINE w16 w16_sub(w16 a, w16 b) {
    return WORDS(_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi));
}
/* Pairs of products are added to 16 bits with saturation, which weights below 128 do not reach. */
INLINE w16 quads(b64 weights, const int8_t *x, int16_t times) {
    int32_t four;
    memcpy(&four, x, 4);
    const __m256i fours = _mm256_set1_epi32(four), t = _mm256_set1_epi16(times);
    return WORDS(_mm256_madd_epi16(_mm256_maddubs_epi16(weights.lo, fours), t),
                 _mm256_madd_epi16(_mm256_maddubs_epi16(weights.hi, fours), t));
}
INLINE w16 w16_dot(w16 sum, b64 weights, const int8_t *x) {
    return w16_add(sum, quads(weights, x, 1));
}
INLINE w16 w16_dot_wide(w16 sum, b64 weights, const int8_t *x) {
    return w16_add(w16_dot(sum, b64_low(weights), x), quads(b64_high(weights), x, 16));
}

INLINE v16 v16_of_w16(w16 a) {
    return (v16){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
INLINE v16 v16_load_u8(const uint8_t *p) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return v16_of_w16(
        WORDS(_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))));
}
INLINE v16 v16_load_i8(const uint8_t *p) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return v16_of_w16(
        WORDS(_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))));
}
INLINE __m256 bf16s(const f16 *p) {
    __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}
INLINE v16 v16_load_bf16(const f16 *p) { return (v16){bf16s(p), bf16s(p + 8)}; }
INLINE __m256 exponents(__m256i e) {
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, is_small));
}
INLINE v16 v16_load_exponents(const uint8_t *p) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return (v16){exponents(_mm256_cvtepu8_epi32(bytes)),
                 exponents(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}
INLINE __m256i rounded(__m256 a) {
    __m256i is_number = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_EQ_OQ));
    return _mm256_and_si256(_mm256_cvtps_epi32(a), is_number);
}
INLINE int32_t v16_store_i8(int8_t *p, v16 a) {
    int32_t words[16], sum = 0;
    _mm256_storeu_si256((__m256i *)words, rounded(a.lo));
    _mm256_storeu_si256((__m256i *)(words + 8), rounded(a.hi));
    for (int i = 0; i < 16; i++) {
        p[i] = (int8_t)words[i];
        sum += p[i];
    }
    return sum;
}
#undef BYTES
#undef WORDS
