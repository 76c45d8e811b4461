// NEON with matrix products (I8MM): two columns at a time.
#include "simd_neon.h"

namespace paceline { namespace {

struct I8mm : Neon {
    static constexpr bool PAIRED = true;

    template <int TOP, int G>
    static void dot_pair(const I *v, const int8_t *q, const int8_t *r, I &of_q, I &of_r) {
        int32x4_t upper = vdupq_n_s32(0), lower = upper;  // rows 0 and 1, rows 2 and 3, each with both columns
#pragma GCC unroll 4
        for (int g = 0; g < G; g += 2) {
            const uint32x4_t a = vreinterpretq_u32_u8(v[g]), b = vreinterpretq_u32_u8(v[g + 1]);
            const int8x16_t columns = vcombine_s8(vld1_s8(q + 4 * g), vld1_s8(r + 4 * g));
            upper = vmmlaq_s32(upper, vreinterpretq_s8_u32(vzip1q_u32(a, b)), columns);
            lower = vmmlaq_s32(lower, vreinterpretq_s8_u32(vzip2q_u32(a, b)), columns);
        }
        of_q = from(vuzp1q_s32(upper, lower));
        of_r = from(vuzp2q_s32(upper, lower));
    }
};

}  // namespace

constexpr Path i8mm_path = path<I8mm>("i8mm");

}  // namespace paceline
