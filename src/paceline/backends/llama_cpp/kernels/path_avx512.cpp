// AVX-512 with VNNI: sixteen rows a vector.
#include <immintrin.h>

#include "attention.h"

namespace paceline { namespace {

struct Avx512 {
    static constexpr int L = 16, WIDE = 1, FLOAT_COLUMNS = 8, KEYS = 4;
    static constexpr bool PAIRED = false;
    using F = __m512;
    using I = __m512i;

    static F load(const float *p) { return _mm512_loadu_ps(p); }
    static void store(float *p, F a) { _mm512_storeu_ps(p, a); }
    static F splat(float x) { return _mm512_set1_ps(x); }
    static F zero() { return _mm512_setzero_ps(); }
    static F halves(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i *>(p))); }
    static F brains(const void *p) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i *>(p))), 16));
    }
    static F powers(const uint8_t *p) {
        const I e = _mm512_max_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))), _mm512_set1_epi32(1));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23));
    }
    static F small(const uint8_t *p) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
    }
    static F add(F a, F b) { return _mm512_add_ps(a, b); }
    static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static F max(F a, F b) { return _mm512_max_ps(a, b); }
    static F negative(F a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
    static F magnitude(F a) { return _mm512_abs_ps(a); }
    static F round(F a) { return _mm512_roundscale_ps(a, 0); }
    static F power_of_two(F n) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
    }
    static F without_below(F a, float limit, F b) {
        return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, splat(limit), _CMP_NLE_UQ), b);
    }
    static F hidden_below(F a, float limit, F b) {
        return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(a, splat(limit), _CMP_LE_OQ), splat(-INFINITY));
    }
    static float largest(F a) { return _mm512_reduce_max_ps(a); }
    static float total(F a) { return _mm512_reduce_add_ps(a); }
    static int64_t whole_sum(F a) {
        const I w = _mm512_cvtps_epi32(a);
        return _mm512_reduce_add_epi64(_mm512_add_epi64(_mm512_cvtepi32_epi64(_mm512_castsi512_si256(w)),
                                                        _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(w, 1))));
    }
    static F fold(const F *a) { return a[0]; }
    static F eights(F a, F b) {  // lanes 8 apart are added: of a in the lower half, of b in the upper one
        return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    }
    static F fours(F a, F b) { return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD)); }
    static F twos(F a, F b) { return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xEE)); }
    static F reduce(const F *a) {  // lane i: the total of a[i], its lanes 8 apart added first, then 4, then 2, then 1
        F x[4];
        for (int i = 0; i < 4; i++)  // quarters of x[i]: a[i], a[i + 4], a[i + 8], a[i + 12], each in four lanes
            x[i] = fours(eights(a[i], a[i + 4]), eights(a[i + 8], a[i + 12]));
        const F y = twos(x[0], x[1]), z = twos(x[2], x[3]);
        return _mm512_add_ps(_mm512_shuffle_ps(y, z, 0x88), _mm512_shuffle_ps(y, z, 0xDD));
    }

    static I bytes(const void *p) { return _mm512_loadu_si512(p); }
    static I byte(int x) { return _mm512_set1_epi8(char(x)); }
    static I both(I a, I b) { return _mm512_and_si512(a, b); }
    static I either(I a, I b) { return _mm512_or_si512(a, b); }
    template <int N> static I left(I a) { return _mm512_slli_epi16(a, N); }
    template <int N> static I right(I a) { return _mm512_srli_epi16(a, N); }
    static I look_up(I a, const int8_t *table) {
        return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table))), a);
    }
    // GCC 12 loads the four activations into a separate register first; as a memory operand they cost
    // nothing on processors with one broadcast and two products a cycle.
    static I add_products(I sum, I v, const int8_t *q) {
        asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(v), "m"(*reinterpret_cast<const int32_t *>(q)));
        return sum;
    }
    template <int TOP, int G> static I dot(const I *v, const int8_t *q) {
        I s = _mm512_setzero_si512(), t = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int g = 0; g < G; g += 2) {
            s = add_products(s, v[g], q + 4 * g);
            t = add_products(t, v[g + 1], q + 4 * g + 4);
        }
        return _mm512_add_epi32(s, t);
    }
    static I dot_signed(const I *v, const Activations &y) {
        I shifted[8];
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) shifted[g] = _mm512_xor_si512(v[g], byte(0x80));  // + 128, without a sign
        return subtract(dot<255, 8>(shifted, y.q), times<128>(y.sum));
    }
    template <int K> static I times(int32_t x) {
        if constexpr ((K & (K - 1)) == 0) return _mm512_slli_epi32(_mm512_set1_epi32(x), log2_of(K));
        else return _mm512_set1_epi32(K * x);
    }
    static I subtract(I a, I b) { return _mm512_sub_epi32(a, b); }
    static F real(I a) { return _mm512_cvtepi32_ps(a); }

    static void narrow(const float *x, float scale, int8_t *q) {
        const F s = splat(scale);
        for (int i = 0; i < 32; i += 16)
            _mm_storeu_si128(reinterpret_cast<__m128i *>(q + i), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(mul(load(x + i), s))));
    }
    static int sum_16(const int8_t *q) {
        const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i *>(q));
        __m128i t = _mm_madd_epi16(_mm_maddubs_epi16(_mm_set1_epi8(1), x), _mm_set1_epi16(1));
        t = _mm_add_epi32(t, _mm_unpackhi_epi64(t, t));
        return _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 1)));
    }
};

}  // namespace

constexpr Path avx512_path = path<Avx512>("avx512-vnni");

}  // namespace paceline
