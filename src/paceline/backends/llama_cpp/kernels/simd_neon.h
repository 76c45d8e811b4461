// NEON with dotprod: four rows a vector.
#pragma once
#include <arm_neon.h>

#include "attention.h"

namespace paceline { namespace {

struct Neon {
    static constexpr int L = 4, WIDE = 2, FLOAT_COLUMNS = 6, KEYS = 2;
    static constexpr bool PAIRED = false;
    using F = float32x4_t;
    using I = uint8x16_t;

    static F load(const float *p) { return vld1q_f32(p); }
    static void store(float *p, F a) { vst1q_f32(p, a); }
    static F splat(float x) { return vdupq_n_f32(x); }
    static F zero() { return vdupq_n_f32(0.0f); }
    static F halves(const void *p) {
        return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(static_cast<const uint8_t *>(p))));
    }
    static F brains(const void *p) {
        return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(static_cast<const uint8_t *>(p))), 16));
    }
    static uint32x4_t four_bytes(const uint8_t *p) {
        uint32_t x;
        memcpy(&x, p, 4);
        return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(x))));
    }
    static F powers(const uint8_t *p) {
        const uint32x4_t one = vdupq_n_u32(1), e = vmaxq_u32(four_bytes(p), one);
        return vreinterpretq_f32_u32(vshlq_n_u32(vsubq_u32(e, one), 23));
    }
    static F small(const uint8_t *p) {
        uint32_t x;
        memcpy(&x, p, 4);
        return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(x)))));
    }
    static F add(F a, F b) { return vaddq_f32(a, b); }
    static F sub(F a, F b) { return vsubq_f32(a, b); }
    static F mul(F a, F b) { return vmulq_f32(a, b); }
    static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
    static F max(F a, F b) { return vmaxq_f32(a, b); }
    static F negative(F a) { return vnegq_f32(a); }
    static F magnitude(F a) { return vabsq_f32(a); }
    static F round(F a) { return vrndnq_f32(a); }
    static F power_of_two(F n) {
        return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
    }
    static F without_below(F a, float limit, F b) {
        return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(b), vcleq_f32(a, splat(limit))));
    }
    static F hidden_below(F a, float limit, F b) { return vbslq_f32(vcleq_f32(a, splat(limit)), splat(-INFINITY), b); }
    static float largest(F a) { return vmaxvq_f32(a); }
    static float total(F a) { return vaddvq_f32(a); }
    static int64_t whole_sum(F a) { return vaddlvq_s32(vcvtnq_s32_f32(a)); }
    static F fold(const F *a) { return add(add(a[0], a[2]), add(a[1], a[3])); }
    static F twos(F a, F b) {  // lanes 2 apart are added: of a in the lower half, of b in the upper one
        const float64x2_t x = vreinterpretq_f64_f32(a), y = vreinterpretq_f64_f32(b);
        return add(vreinterpretq_f32_f64(vzip1q_f64(x, y)), vreinterpretq_f32_f64(vzip2q_f64(x, y)));
    }
    static F reduce(const F *a) { return vpaddq_f32(twos(a[0], a[1]), twos(a[2], a[3])); }

    static I bytes(const void *p) { return vld1q_u8(static_cast<const uint8_t *>(p)); }
    static I byte(int x) { return vdupq_n_u8(uint8_t(x)); }
    static I both(I a, I b) { return vandq_u8(a, b); }
    static I either(I a, I b) { return vorrq_u8(a, b); }
    template <int N> static I left(I a) { return vshlq_n_u8(a, N); }
    template <int N> static I right(I a) { return vshrq_n_u8(a, N); }
    static I look_up(I a, const int8_t *table) { return vqtbl1q_u8(vreinterpretq_u8_s8(vld1q_s8(table)), a); }

    // Codes are below 128, so that they may be read as signed.
    static int32x4_t four(int32x4_t sum, const I *v, const int8_t *q) {
        const int8x16_t a = vld1q_s8(q);
        sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(v[0]), a, 0);
        sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(v[1]), a, 1);
        sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(v[2]), a, 2);
        return vdotq_laneq_s32(sum, vreinterpretq_s8_u8(v[3]), a, 3);
    }
    static I from(int32x4_t a) { return vreinterpretq_u8_s32(a); }
    static int32x4_t wholes(I a) { return vreinterpretq_s32_u8(a); }
    template <int TOP, int G> static I dot(const I *v, const int8_t *q) {
        static_assert(TOP < 128, "");
        const int32x4_t first = four(vdupq_n_s32(0), v, q);
        if constexpr (G == 4) return from(first);
        else return from(vaddq_s32(first, four(vdupq_n_s32(0), v + 4, q + 16)));
    }
    static I dot_signed(const I *v, const Activations &y) { return dot<127, 8>(v, y.q); }
    template <int K> static I times(int32_t x) { return from(vdupq_n_s32(K * x)); }
    static I subtract(I a, I b) { return from(vsubq_s32(wholes(a), wholes(b))); }
    static F real(I a) { return vcvtq_f32_s32(wholes(a)); }

    static void narrow(const float *x, float scale, int8_t *q) {
        for (int i = 0; i < 32; i += 8) {
            const int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(load(x + i), scale));
            const int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(load(x + i + 4), scale));
            vst1_s8(q + i, vqmovn_s16(vcombine_s16(vqmovn_s32(a), vqmovn_s32(b))));
        }
    }
    static int sum_16(const int8_t *q) { return vaddlvq_s8(vld1q_s8(q)); }
};

} }  // namespace paceline
