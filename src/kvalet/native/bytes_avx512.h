/* b64 and w16 as one AVX-512 register each. Without VNNI a dot product takes more instructions. */
#define TILE_COLUMNS 8
#define UNROLL_GROUPS UNROLL

typedef __m512i b64;
typedef __m512i w16;

INLINE b64 b64_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
INLINE b64 b64_low(b64 x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
INLINE b64 b64_high(b64 x) { return b64_low(_mm512_srli_epi16(x, 4)); }
/* A shift of 16-bit lanes: what crosses into the other byte is masked away. */
INLINE b64 shifted(b64 x, int left) {
    return left < 0 ? _mm512_srli_epi16(x, -left) : _mm512_slli_epi16(x, left);
}
INLINE b64 b64_fifth(b64 low, b64 high, int g) {
    /* low | (high shifted & 16) */
    return _mm512_ternarylogic_epi32(low, shifted(high, 4 - g), _mm512_set1_epi8(16), 0xf8);
}
INLINE b64 b64_sixth(b64 low, b64 high, int g) {
    return _mm512_ternarylogic_epi32(low, shifted(high, 4 - 2 * g), _mm512_set1_epi8(48), 0xf8);
}
INLINE b64 b64_table(b64 codes, const uint8_t *table) {
    __m128i entries = _mm_loadu_si128((const __m128i *)table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(entries), codes);
}

INLINE w16 w16_set1(int32_t x) { return _mm512_set1_epi32(x); }
INLINE w16 w16_shl(w16 a, int bits) { return _mm512_slli_epi32(a, bits); }
INLINE w16 w16_sub(w16 a, w16 b) { return _mm512_sub_epi32(a, b); }
INLINE __m512i four_at(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm512_set1_epi32(four);
}
#if defined(__AVX512VNNI__)
INLINE w16 w16_dot(w16 sum, b64 weights, const int8_t *x) {
    return _mm512_dpbusd_epi32(sum, weights, four_at(x));
}
INLINE w16 w16_dot_wide(w16 sum, b64 weights, const int8_t *x) { return w16_dot(sum, weights, x); }
#else
/* Pairs of products are added to 16 bits with saturation, which weights below 128 do not reach. */
INLINE w16 w16_dot(w16 sum, b64 weights, const int8_t *x) {
    __m512i pairs = _mm512_maddubs_epi16(weights, four_at(x));
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
INLINE w16 w16_dot_wide(w16 sum, b64 weights, const int8_t *x) {
    __m512i low = _mm512_maddubs_epi16(b64_low(weights), four_at(x));
    __m512i high = _mm512_maddubs_epi16(b64_high(weights), four_at(x));
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(low, _mm512_set1_epi16(1)));
    return _mm512_add_epi32(sum, _mm512_madd_epi16(high, _mm512_set1_epi16(16)));
}
#endif

INLINE v16 v16_of_w16(w16 a) { return _mm512_cvtepi32_ps(a); }
INLINE v16 v16_load_u8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
INLINE v16 v16_load_i8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
INLINE v16 v16_load_bf16(const f16 *p) {
    __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
INLINE v16 v16_load_exponents(const uint8_t *p) {
    __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    __mmask16 is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, small));
}
INLINE int32_t v16_store_i8(int8_t *p, v16 a) {
    __m512i words = _mm512_cvtps_epi32(a); /* what cannot be converted has only its top bit */
    words = _mm512_maskz_mov_epi32(_mm512_cmp_ps_mask(a, a, _CMP_EQ_OQ), words);
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(words));
    return _mm512_reduce_add_epi32(words);
}
