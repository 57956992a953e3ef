/* The plain C spelling of b64 and w16: the reference of the others. */
#define TILE_COLUMNS 1

/* Loops are left to the compiler: unrolled, they would take minutes. */
#define UNROLL_GROUPS

typedef struct { uint8_t b[64]; } b64;
typedef struct { int32_t w[16]; } w16;

#define EACH_BYTE(expression)        \
    b64 r;                           \
    for (int i = 0; i < 64; i++)     \
        r.b[i] = (uint8_t)(expression); \
    return r
#define EACH_WORD(expression)        \
    w16 r;                           \
    for (int i = 0; i < 16; i++)     \
        r.w[i] = (expression);       \
    return r

INLINE b64 b64_load(const uint8_t *p) { EACH_BYTE(p[i]); }
INLINE b64 b64_low(b64 x) { EACH_BYTE(x.b[i] & 15); }
INLINE b64 b64_high(b64 x) { EACH_BYTE(x.b[i] >> 4); }
/* Bit g of each byte of `high` becomes the fifth of `low`. */
INLINE b64 b64_fifth(b64 low, b64 high, int g) {
    EACH_BYTE(low.b[i] | (high.b[i] >> g & 1) << 4);
}
/* Bits 2 g and 2 g + 1 become the fifth and sixth. */
INLINE b64 b64_sixth(b64 low, b64 high, int g) {
    EACH_BYTE(low.b[i] | (high.b[i] >> 2 * g & 3) << 4);
}
INLINE b64 b64_table(b64 codes, const uint8_t *table) { EACH_BYTE(table[codes.b[i]]); }

INLINE w16 w16_set1(int32_t x) { EACH_WORD(x); }
INLINE w16 w16_shl(w16 a, int bits) { EACH_WORD((int32_t)((uint32_t)a.w[i] << bits)); }
INLINE w16 w16_sub(w16 a, w16 b) { EACH_WORD(a.w[i] - b.w[i]); }
/* Each row's sum over its four weights, below 128, times the four at x. */
INLINE w16 w16_dot(w16 sum, b64 weights, const int8_t *x) {
    EACH_WORD(sum.w[i] + weights.b[4 * i] * x[0] + weights.b[4 * i + 1] * x[1] +
              weights.b[4 * i + 2] * x[2] + weights.b[4 * i + 3] * x[3]);
}
/* The same of any weights. */
INLINE w16 w16_dot_wide(w16 sum, b64 weights, const int8_t *x) { return w16_dot(sum, weights, x); }

INLINE v16 v16_of_w16(w16 a) {
    float lanes[16];
    for (int i = 0; i < 16; i++)
        lanes[i] = (float)a.w[i];
    return v16_load(lanes);
}
INLINE v16 v16_load_u8(const uint8_t *p) {
    float lanes[16];
    for (int i = 0; i < 16; i++)
        lanes[i] = p[i];
    return v16_load(lanes);
}
INLINE v16 v16_load_i8(const uint8_t *p) {
    float lanes[16];
    for (int i = 0; i < 16; i++)
        lanes[i] = (int8_t)p[i];
    return v16_load(lanes);
}
INLINE v16 v16_load_bf16(const f16 *p) {
    float lanes[16];
    for (int i = 0; i < 16; i++) {
        uint32_t bits = (uint32_t)p[i] << 16;
        memcpy(lanes + i, &bits, 4);
    }
    return v16_load(lanes);
}
/* 2^(e - 128) */
INLINE v16 v16_load_exponents(const uint8_t *p) {
    float lanes[16];
    for (int i = 0; i < 16; i++) {
        uint32_t bits = p[i] < 2 ? 0x00200000u << p[i] : (uint32_t)(p[i] - 1) << 23;
        memcpy(lanes + i, &bits, 4);
    }
    return v16_load(lanes);
}
/* Rounded to the nearest, ties to even; a NaN is 0. Returns their sum. */
INLINE int32_t v16_store_i8(int8_t *p, v16 a) {
    float lanes[16];
    int32_t sum = 0;
    v16_store(lanes, a);
    for (int i = 0; i < 16; i++) {
        p[i] = lanes[i] == lanes[i] ? (int8_t)rintf(lanes[i]) : 0;
        sum += p[i];
    }
    return sum;
}
#undef EACH_BYTE
#undef EACH_WORD
