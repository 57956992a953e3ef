/* v16 as four NEON registers, lanes in order. */
#include <arm_neon.h>

#define TILE_QUERIES 6
#define V16_REGISTERS 8

typedef struct { float32x4_t q[4]; } v16;

#define EACH_QUARTER(expression)     \
    v16 r;                           \
    UNROLL                           \
    for (int i = 0; i < 4; i++)      \
        r.q[i] = (expression);       \
    return r

INLINE v16 v16_set1(float x) { EACH_QUARTER(vdupq_n_f32(x)); }
INLINE v16 v16_load(const float *p) { EACH_QUARTER(vld1q_f32(p + 4 * i)); }
INLINE v16 v16_load_f16(const f16 *p) {
    EACH_QUARTER(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
INLINE v16 v16_fma(v16 a, v16 b, v16 c) { EACH_QUARTER(vfmaq_f32(c.q[i], a.q[i], b.q[i])); }
INLINE v16 v16_add(v16 a, v16 b) { EACH_QUARTER(vaddq_f32(a.q[i], b.q[i])); }
INLINE v16 v16_sub(v16 a, v16 b) { EACH_QUARTER(vsubq_f32(a.q[i], b.q[i])); }
INLINE v16 v16_mul(v16 a, v16 b) { EACH_QUARTER(vmulq_f32(a.q[i], b.q[i])); }
INLINE v16 v16_div(v16 a, v16 b) { EACH_QUARTER(vdivq_f32(a.q[i], b.q[i])); }
INLINE v16 v16_abs(v16 a) { EACH_QUARTER(vabsq_f32(a.q[i])); }
INLINE v16 v16_copysign(v16 a, v16 b) {
    EACH_QUARTER(vbslq_f32(vdupq_n_u32(0x80000000u), b.q[i], a.q[i]));
}
/* Not vmaxq: that keeps the NaN, whichever operand it is. */
INLINE v16 v16_max(v16 a, v16 b) {
    EACH_QUARTER(vbslq_f32(vcgtq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]));
}
INLINE v16 v16_select_lt(v16 a, v16 b, v16 x, v16 y) {
    EACH_QUARTER(vbslq_f32(vcltq_f32(a.q[i], b.q[i]), x.q[i], y.q[i]));
}
INLINE uint32x4_t lanes_within(int first, int end) {
    const int32x4_t lane = {0, 1, 2, 3};
    return vandq_u32(vcgeq_s32(lane, vdupq_n_s32(first)), vcltq_s32(lane, vdupq_n_s32(end)));
}
INLINE v16 v16_keep(v16 x, int first, int end, v16 other) {
    EACH_QUARTER(vbslq_f32(lanes_within(first - 4 * i, end - 4 * i), x.q[i], other.q[i]));
}
INLINE v16 v16_pow2_of_low_bits(v16 a) {
    EACH_QUARTER(vreinterpretq_f32_s32(vaddq_s32(
        vshlq_n_s32(vreinterpretq_s32_f32(a.q[i]), 23), vdupq_n_s32(0x3f800000))));
}
INLINE void v16_store(float *p, v16 a) {
    UNROLL
    for (int i = 0; i < 4; i++)
        vst1q_f32(p + 4 * i, a.q[i]);
}
INLINE void v16_store_f16(f16 *p, v16 a) {
    UNROLL
    for (int i = 0; i < 4; i++)
        vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.q[i])));
}
INLINE uint32_t v16_mask_ge(v16 a, v16 b) {
    const uint32x4_t bit = {1, 2, 4, 8};
    uint32_t mask = 0;
    UNROLL
    for (int i = 0; i < 4; i++)
        mask |= vaddvq_u32(vandq_u32(vcgeq_f32(a.q[i], b.q[i]), bit)) << (4 * i);
    return mask;
}

INLINE float v16_reduce_add(v16 a) {
    float32x4_t c = vaddq_f32(vaddq_f32(a.q[0], a.q[2]), vaddq_f32(a.q[1], a.q[3]));
    float32x2_t d = vadd_f32(vget_low_f32(c), vget_high_f32(c));
    return vget_lane_f32(d, 0) + vget_lane_f32(d, 1);
}
INLINE float larger(float a, float b) { return a > b ? a : b; }
INLINE float v16_reduce_max(v16 a) {
    float lanes[16];
    v16_store(lanes, a);
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lanes[i] = larger(lanes[i], lanes[i + half]);
    return lanes[0];
}
#undef EACH_QUARTER
