// AVX2 with byte products in one instruction (AVX-VNNI).
#include "simd_avx2.h"

namespace paceline { namespace {

struct AvxVnni : Avx2 {
    template <int TOP, int G> static I dot(const I *v, const int8_t *q) {
        I s = _mm256_setzero_si256(), t = _mm256_setzero_si256();
#pragma GCC unroll 4
        for (int g = 0; g < G; g += 2) {
            s = _mm256_dpbusd_avx_epi32(s, v[g], four(q + 4 * g));
            t = _mm256_dpbusd_avx_epi32(t, v[g + 1], four(q + 4 * g + 4));
        }
        return _mm256_add_epi32(s, t);
    }
    static I dot_signed(const I *v, const Activations &y) {
        I shifted[8];
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) shifted[g] = _mm256_xor_si256(v[g], byte(0x80));  // + 128, without a sign
        return subtract(dot<255, 8>(shifted, y.q), times<128>(y.sum));
    }
};

}  // namespace

constexpr Path avxvnni_path = path<AvxVnni>("avx-vnni");

}  // namespace paceline
