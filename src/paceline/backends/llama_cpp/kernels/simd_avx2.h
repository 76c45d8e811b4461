// AVX2, FMA and F16C: eight rows a vector. Byte products are summed pairwise in 16 bits; as
// many are added as cannot overflow before they are widened to 32.
#pragma once
#include <immintrin.h>

#include "attention.h"

namespace paceline { namespace {

struct Avx2 {
    static constexpr int L = 8, WIDE = 2, FLOAT_COLUMNS = 3, KEYS = 2;
    static constexpr bool PAIRED = false;
    using F = __m256;
    using I = __m256i;

    static F load(const float *p) { return _mm256_loadu_ps(p); }
    static void store(float *p, F a) { _mm256_storeu_ps(p, a); }
    static F splat(float x) { return _mm256_set1_ps(x); }
    static F zero() { return _mm256_setzero_ps(); }
    static F halves(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i *>(p))); }
    static F brains(const void *p) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i *>(p))), 16));
    }
    static F powers(const uint8_t *p) {
        const I e = _mm256_max_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))), _mm256_set1_epi32(1));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23));
    }
    static F small(const uint8_t *p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))));
    }
    static F add(F a, F b) { return _mm256_add_ps(a, b); }
    static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    static F max(F a, F b) { return _mm256_max_ps(a, b); }
    static F negative(F a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
    static F magnitude(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
    static F round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static F power_of_two(F n) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
    }
    static F without_below(F a, float limit, F b) { return _mm256_andnot_ps(_mm256_cmp_ps(a, splat(limit), _CMP_LE_OQ), b); }
    static F hidden_below(F a, float limit, F b) {
        return _mm256_blendv_ps(b, splat(-INFINITY), _mm256_cmp_ps(a, splat(limit), _CMP_LE_OQ));
    }
    static float largest(F a) {
        __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        m = _mm_max_ps(m, _mm_movehl_ps(m, m));
        return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
    }
    static float total(F a) {
        __m128 m = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        m = _mm_add_ps(m, _mm_movehl_ps(m, m));
        return _mm_cvtss_f32(_mm_add_ss(m, _mm_movehdup_ps(m)));
    }
    static int64_t whole_sum(F a) {
        const I w = _mm256_cvtps_epi32(a);
        const I t = _mm256_add_epi64(_mm256_cvtepi32_epi64(_mm256_castsi256_si128(w)),
                                     _mm256_cvtepi32_epi64(_mm256_extracti128_si256(w, 1)));
        const __m128i u = _mm_add_epi64(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
        return _mm_cvtsi128_si64(u) + _mm_extract_epi64(u, 1);
    }
    static F fold(const F *a) { return _mm256_add_ps(a[0], a[1]); }
    static F halves_of(F a, F b) {  // lanes 4 apart are added: those of a, then those of b
        return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    }
    static F pairs_of(F a, F b) { return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xEE)); }
    static F reduce(const F *a) {  // lane i: the total of a[i], its lanes 4 apart added first, then 2, then 1
        const F x = pairs_of(halves_of(a[0], a[4]), halves_of(a[1], a[5]));
        const F y = pairs_of(halves_of(a[2], a[6]), halves_of(a[3], a[7]));
        return _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x88), _mm256_shuffle_ps(x, y, 0xDD));
    }

    static I bytes(const void *p) { return _mm256_loadu_si256(static_cast<const I *>(p)); }
    static I byte(int x) { return _mm256_set1_epi8(char(x)); }
    static I both(I a, I b) { return _mm256_and_si256(a, b); }
    static I either(I a, I b) { return _mm256_or_si256(a, b); }
    template <int N> static I left(I a) { return _mm256_slli_epi16(a, N); }
    template <int N> static I right(I a) { return _mm256_srli_epi16(a, N); }
    static I look_up(I a, const int8_t *table) {
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table))), a);
    }
    static I four(const int8_t *q) {
        int32_t x;
        memcpy(&x, q, 4);
        return _mm256_set1_epi32(x);
    }
    // Pairs of groups FROM to TO, in 16 bits.
    template <int FROM, int TO> static I pairs(const I *v, const int8_t *q) {
        const I first = _mm256_maddubs_epi16(v[FROM], four(q + 4 * FROM));
        if constexpr (FROM + 1 == TO) return first;
        else return _mm256_add_epi16(first, pairs<FROM + 1, TO>(v, q));
    }
    template <int TOP, int FROM, int TO> static I widened(const I *v, const int8_t *q) {
        constexpr int most = 32767 / (2 * 127 * TOP), end = FROM + most < TO ? FROM + most : TO;
        const I sum = _mm256_madd_epi16(pairs<FROM, end>(v, q), _mm256_set1_epi16(1));
        if constexpr (end == TO) return sum;
        else return _mm256_add_epi32(sum, widened<TOP, end, TO>(v, q));
    }
    template <int TOP, int G> static I dot(const I *v, const int8_t *q) { return widened<TOP, 0, G>(v, q); }
    static I dot_signed(const I *v, const Activations &y) {
        I sum = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) {
            const I pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(v[g]), _mm256_sign_epi8(four(y.q + 4 * g), v[g]));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        }
        return sum;
    }
    template <int K> static I times(int32_t x) {
        if constexpr ((K & (K - 1)) == 0) return _mm256_slli_epi32(_mm256_set1_epi32(x), log2_of(K));
        else return _mm256_set1_epi32(K * x);
    }
    static I subtract(I a, I b) { return _mm256_sub_epi32(a, b); }
    static F real(I a) { return _mm256_cvtepi32_ps(a); }

    static void narrow(const float *x, float scale, int8_t *q) {
        const F s = splat(scale);
        const I a = _mm256_cvtps_epi32(mul(load(x), s)), b = _mm256_cvtps_epi32(mul(load(x + 8), s));
        const I c = _mm256_cvtps_epi32(mul(load(x + 16), s)), d = _mm256_cvtps_epi32(mul(load(x + 24), s));
        const I packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        const I order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_storeu_si256(reinterpret_cast<I *>(q), _mm256_permutevar8x32_epi32(packed, order));
    }
    static int sum_16(const int8_t *q) {
        const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i *>(q));
        __m128i t = _mm_madd_epi16(_mm_maddubs_epi16(_mm_set1_epi8(1), x), _mm_set1_epi16(1));
        t = _mm_add_epi32(t, _mm_unpackhi_epi64(t, t));
        return _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 1)));
    }
};

} }  // namespace paceline
