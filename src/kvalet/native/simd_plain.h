/* The plain C spelling of v16: the reference of the others. Slow where fmaf is a call. */
#define TILE_QUERIES 6
#define V16_REGISTERS 8

typedef struct { float f[16]; } v16;

INLINE uint32_t bits_of(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
INLINE float float_of(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }

INLINE float f16_to_f32(f16 h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
    if (exponent == 0)
        return float_of(sign | bits_of((float)mantissa * 0x1p-24f));
    if (exponent == 31)
        return float_of(sign | 0x7f800000 | (mantissa ? 0x400000 : 0) | mantissa << 13);
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* Round to nearest even. */
INLINE f16 f32_to_f16(float x) {
    uint32_t u = bits_of(x), a = u & 0x7fffffff, sign = (u >> 16) & 0x8000;
    if (a > 0x7f800000)
        return (f16)(sign | 0x7e00 | ((a >> 13) & 0x3ff));
    if (a >= 0x477ff000) /* 65520 and above */
        return (f16)(sign | 0x7c00);
    if (a < 0x38800000) /* subnormal: an ulp of 0.5 is 2^-24, the addition rounds */
        return (f16)(sign | (bits_of(float_of(a) + 0.5f) - 0x3f000000));
    return (f16)(sign | ((a - 0x38000000 + 0xfff + ((a >> 13) & 1)) >> 13));
}

#define EACH_LANE(expression)        \
    v16 r;                           \
    for (int i = 0; i < 16; i++)     \
        r.f[i] = (expression);       \
    return r

INLINE v16 v16_set1(float x) { EACH_LANE(x); }
INLINE v16 v16_load(const float *p) { EACH_LANE(p[i]); }
INLINE v16 v16_load_f16(const f16 *p) { EACH_LANE(f16_to_f32(p[i])); }
INLINE v16 v16_fma(v16 a, v16 b, v16 c) { EACH_LANE(fmaf(a.f[i], b.f[i], c.f[i])); }
INLINE v16 v16_add(v16 a, v16 b) { EACH_LANE(a.f[i] + b.f[i]); }
INLINE v16 v16_sub(v16 a, v16 b) { EACH_LANE(a.f[i] - b.f[i]); }
INLINE v16 v16_mul(v16 a, v16 b) { EACH_LANE(a.f[i] * b.f[i]); }
INLINE v16 v16_div(v16 a, v16 b) { EACH_LANE(a.f[i] / b.f[i]); }
INLINE v16 v16_abs(v16 a) { EACH_LANE(fabsf(a.f[i])); }
INLINE v16 v16_copysign(v16 a, v16 sign) { EACH_LANE(copysignf(a.f[i], sign.f[i])); }

/* a > b ? a : b, so b where either is NaN */
INLINE v16 v16_max(v16 a, v16 b) { EACH_LANE(a.f[i] > b.f[i] ? a.f[i] : b.f[i]); }

/* a < b ? x : y */
INLINE v16 v16_select_lt(v16 a, v16 b, v16 x, v16 y) {
    EACH_LANE(a.f[i] < b.f[i] ? x.f[i] : y.f[i]);
}

/* Lanes first <= i < end of x, `other` elsewhere; first and end may lie outside 0..16. */
INLINE v16 v16_keep(v16 x, int first, int end, v16 other) {
    EACH_LANE(i >= first && i < end ? x.f[i] : other.f[i]);
}

/* 2^n where n is the signed integer in the low 9 bits of the representation */
INLINE v16 v16_pow2_of_low_bits(v16 a) {
    EACH_LANE(float_of((bits_of(a.f[i]) << 23) + 0x3f800000));
}

INLINE void v16_store(float *p, v16 a) { memcpy(p, a.f, sizeof a.f); }

INLINE void v16_store_f16(f16 *p, v16 a) {
    for (int i = 0; i < 16; i++)
        p[i] = f32_to_f16(a.f[i]);
}

/* Bit i is set where a >= b. */
INLINE uint32_t v16_mask_ge(v16 a, v16 b) {
    uint32_t mask = 0;
    for (int i = 0; i < 16; i++)
        mask |= (uint32_t)(a.f[i] >= b.f[i]) << i;
    return mask;
}

/* Tree: lane i meets i + 8, then i + 4, i + 2, i + 1. */
INLINE float v16_reduce_add(v16 a) {
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            a.f[i] = a.f[i] + a.f[i + half];
    return a.f[0];
}

INLINE float v16_reduce_max(v16 a) {
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            a.f[i] = a.f[i] > a.f[i + half] ? a.f[i] : a.f[i + half];
    return a.f[0];
}

#undef EACH_LANE
