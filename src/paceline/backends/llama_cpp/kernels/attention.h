// Attention of one head, in three steps that threads can share: scores of KV cells, their softmax, and the
// weighted sum of values. A row's result does not depend on masked cells or on how the steps are divided:
// a score is summed in 16 lanes, then pairwise; the softmax's sum is a sum of integers; values are
// added cell by cell, a masked one as zero.
#pragma once
#include <cmath>

#include "products.h"

namespace paceline { namespace {

constexpr int CELLS = 64;  // cells converted at a time
constexpr int WIDEST = 1024;

inline int rounded(int n, int to) { return (n + to - 1) / to * to; }

// Write a cell's n values as floats to out.
template <class S> void row_to_float(const Cells &x, const char *cell, int start, int n, float *out) {
    if (x.type == F16::type || x.type == BF16::type) {
        const uint16_t *p = reinterpret_cast<const uint16_t *>(cell) + start;
        int i = 0;
        for (; i + S::L <= n; i += S::L) S::store(out + i, x.type == F16::type ? S::halves(p + i) : S::brains(p + i));
        if (i < n) {
            uint16_t rest[S::L] = {};
            memcpy(rest, p + i, size_t(n - i) * 2);
            float all[S::L];
            S::store(all, x.type == F16::type ? S::halves(rest) : S::brains(rest));
            memcpy(out + i, all, size_t(n - i) * 4);
        }
    } else if (x.type == F32::type) {
        memcpy(out, reinterpret_cast<const float *>(cell) + start, size_t(n) * 4);
    } else {  // quantised types: whole rows only
        float all[WIDEST];
        x.to_float(cell, all, x.width);
        memcpy(out, all + start, size_t(n) * 4);
    }
}

template <class S> inline void fetch(const Cells &x, const int32_t *cells, int64_t n, int start, int width) {
    const int size = x.type == F32::type ? 4 : 2;
    for (int64_t c = 0; c < n; c++) {
        const char *p = x.base + cells[c] * int64_t(x.stride) + start * size;
        for (int o = 0; o < width * size; o += 64) __builtin_prefetch(p + o);
    }
}

// Scores of L keys with Q queries. width: a multiple of 16.
template <class S, int Q>
inline void score_group(const float *keys, const float *queries, int width, float *scores, int64_t stride) {
    using F = typename S::F;
    constexpr int L = S::L, V = 16 / L, AT_ONCE = S::KEYS;
    F folded[Q][L];
    for (int p = 0; p < L; p += AT_ONCE) {
        F acc[AT_ONCE][Q][V];
        for (int i = 0; i < AT_ONCE; i++)
            for (int q = 0; q < Q; q++)
                for (int v = 0; v < V; v++) acc[i][q][v] = S::zero();
        for (int d = 0; d < width; d += 16)
#pragma GCC unroll 4
            for (int v = 0; v < V; v++)
#pragma GCC unroll 4
                for (int i = 0; i < AT_ONCE; i++) {
                    const F k = S::load(keys + (p + i) * width + d + v * L);
#pragma GCC unroll 4
                    for (int q = 0; q < Q; q++)
                        acc[i][q][v] = S::fma(S::load(queries + q * width + d + v * L), k, acc[i][q][v]);
                }
        for (int i = 0; i < AT_ONCE; i++)
            for (int q = 0; q < Q; q++) folded[q][p + i] = S::fold(acc[i][q]);
    }
    for (int q = 0; q < Q; q++) S::store(scores + q * stride, S::reduce(folded[q]));
}

// queries: [n][width rounded up to 16], padded with zeros. Scores are written up to the next multiple of 16.
template <class S>
void scores(const Cells &keys, const int32_t *cells, int64_t from, int64_t to, const float *queries, int n,
            float *out, int64_t stride) {
    constexpr int L = S::L;
    const int width = rounded(keys.width, ROUND_K);
    alignas(64) float block[16 * WIDEST];
    for (int64_t c = from; c < to; c += L) {
        const int64_t m = to - c < L ? to - c : L;
        if (c + L < to) fetch<S>(keys, cells + c + L, to - c - L < L ? to - c - L : L, 0, keys.width);
        for (int i = 0; i < L; i++) {
            float *row = block + i * width;
            int done = 0;
            if (i < m) {
                row_to_float<S>(keys, keys.base + cells[c + i] * int64_t(keys.stride), 0, keys.width, row);
                done = keys.width;
            }
            if (done < width) memset(row + done, 0, size_t(width - done) * 4);
        }
        for (int q = 0; q < n; q += 3) {
            float *to_scores = out + q * stride + c;
            const float *x = queries + int64_t(q) * width;
            if (n - q == 1) score_group<S, 1>(block, x, width, to_scores, stride);
            else if (n - q == 2) score_group<S, 2>(block, x, width, to_scores, stride);
            else score_group<S, 3>(block, x, width, to_scores, stride);
        }
    }
}

// exp(x) for x <= 0: Cephes' expf, a polynomial after range reduction by powers of two.
template <class S> inline typename S::F exponential(typename S::F x) {
    x = S::max(S::splat(-87.0f), x);  // in this order NaN stays NaN
    const auto n = S::round(S::mul(x, S::splat(1.44269504f)));
    auto r = S::fma(n, S::splat(-0.693359375f), x);
    r = S::fma(n, S::splat(2.12194440e-4f), r);
    auto p = S::splat(1.9875691500e-4f);
    const float terms[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
    for (float t : terms) p = S::fma(p, r, S::splat(t));
    p = S::fma(p, S::mul(r, r), S::add(r, S::splat(1.0f)));
    return S::mul(p, S::power_of_two(n));
}

constexpr float HIDDEN = -1e30f;       // lower scores count as masked
constexpr float WHOLE = 1073741824.0f;  // 2^30: probabilities are summed as integers in this fixed-point unit

// x and mask may be read, and x written, up to the next multiple of 16.
template <class S>
float softmax(float *x, const float *mask, int64_t n, float cap, float slope, const float *sink) {
    constexpr int L = S::L;
    typename S::F most = S::splat(-INFINITY);
    for (int64_t i = 0; i < n; i += L) {
        auto s = S::load(x + i);
        if (cap != 0.0f) {
            float all[L];
            S::store(all, s);
            for (int j = 0; j < L; j++) all[j] = cap * tanhf(all[j]);
            s = S::load(all);
        }
        if (mask) {  // masked cells and NaN scores count as -inf
            const auto m = S::load(mask + i);
            s = S::hidden_below(m, HIDDEN, S::fma(S::splat(slope), m, s));
        }
        S::store(x + i, s);
        if (i + L > n) {  // padding counts as -inf
            for (int64_t j = n; j < i + L; j++) x[j] = -INFINITY;
            s = S::load(x + i);
        }
        most = S::max(most, s);
    }
    float top = S::largest(most);
    if (sink && *sink > top) top = *sink;
    if (!(top > HIDDEN)) {
        for (int64_t i = 0; i < n; i++) x[i] = top != top ? top : 0.0f;
        return top != top ? top : 0.0f;
    }
    const auto shift = S::splat(top);
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i += L) {
        const auto s = S::load(x + i);
        const auto p = S::without_below(s, HIDDEN, exponential<S>(S::sub(s, shift)));
        S::store(x + i, p);
        sum += S::whole_sum(S::mul(p, S::splat(WHOLE)));
    }
    double total = double(sum) / double(WHOLE);
    if (sink) {
        float one[L];
        S::store(one, exponential<S>(S::splat(*sink - top)));
        total += double(one[0]);
    }
    return float(total);
}

template <class S, int Q>
inline void value_group(const float *values, const float *weights, int64_t stride, int64_t m, float *out, int64_t os) {
    using F = typename S::F;
    constexpr int V = SLICE / S::L;
    F acc[Q][V];
    for (int q = 0; q < Q; q++)
        for (int v = 0; v < V; v++) acc[q][v] = S::load(out + q * os + v * S::L);
    for (int64_t c = 0; c < m; c++) {
        F x[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) x[v] = S::load(values + c * SLICE + v * S::L);
#pragma GCC unroll 8
        for (int q = 0; q < Q; q++) {
            const F w = S::splat(weights[q * stride + c]);
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) acc[q][v] = S::fma(w, x[v], acc[q][v]);
        }
    }
    for (int q = 0; q < Q; q++)
        for (int v = 0; v < V; v++) S::store(out + q * os + v * S::L, acc[q][v]);
}

// out: [n][out_stride]; writes columns [start, start + SLICE), zeros beyond the width.
template <class S>
void values(const Cells &x, const int32_t *cells, int64_t n_cells, const float *weights, int64_t stride, int n,
            int start, float *out, int64_t out_stride) {
    alignas(64) float block[CELLS * SLICE];
    const int width = x.width - start < SLICE ? x.width - start : SLICE;
    for (int q = 0; q < n; q++) memset(out + q * out_stride + start, 0, SLICE * 4);
    if (width < SLICE) memset(block, 0, sizeof block);
    for (int64_t c = 0; c < n_cells; c += CELLS) {
        const int64_t m = n_cells - c < CELLS ? n_cells - c : CELLS;
        for (int64_t i = 0; i < m; i++) {
            if (c + i + 8 < n_cells) fetch<S>(x, cells + c + i + 8, 1, start, width);
            row_to_float<S>(x, x.base + cells[c + i] * int64_t(x.stride), start, width, block + i * SLICE);
        }
        for (int q = 0; q < n;) {
            const float *w = weights + q * stride + c;
            float *o = out + q * out_stride + start;
            const int left = n - q;
            if (left >= 3) value_group<S, 3>(block, w, stride, m, o, out_stride), q += 3;
            else if (left == 2) value_group<S, 2>(block, w, stride, m, o, out_stride), q += 2;
            else value_group<S, 1>(block, w, stride, m, o, out_stride), q += 1;
        }
    }
}

template <class S> void halves_to_floats(const uint16_t *in, float *out, int64_t n) {
    Cells x{};
    x.type = F16::type;
    row_to_float<S>(x, reinterpret_cast<const char *>(in), 0, int(n), out);
}

// The function table of a path.
template <class S, class T> constexpr Kind kind() {
    return {T::type, true, T::block, size_t(T::bytes), S::L, size_t(Layout<S, T>::bytes), MOST,
            {nullptr, product<S, T, 1>, product<S, T, 2>, product<S, T, 3>, product<S, T, 4>, product<S, T, 5>,
             product<S, T, 6>, product<S, T, 7>, product<S, T, 8>},
            pack<S, T>};
}

template <class S, class W, int N> constexpr Product floats_of() {
    if constexpr (N <= S::FLOAT_COLUMNS) return product_floats<S, W, N>;
    else return nullptr;
}

template <class S, class W> constexpr Kind kind_of_floats() {
    constexpr int rows = S::L * S::WIDE;
    return {W::type, false, 1, size_t(W::bytes), rows, size_t(W::bytes) * rows, S::FLOAT_COLUMNS,
            {nullptr, floats_of<S, W, 1>(), floats_of<S, W, 2>(), floats_of<S, W, 3>(), floats_of<S, W, 4>(),
             floats_of<S, W, 5>(), floats_of<S, W, 6>(), floats_of<S, W, 7>(), floats_of<S, W, 8>()},
            pack_floats<S, W>};
}

// constexpr: no static initialiser may run instructions that the processor lacks.
template <class S> constexpr Kind KINDS[] = {
    kind<S, Q4_0>(), kind<S, Q4_1>(), kind<S, Q5_0>(), kind<S, Q5_1>(), kind<S, Q8_0>(), kind<S, IQ4_NL>(),
    kind<S, MXFP4>(), kind<S, Q2_K>(), kind<S, Q3_K>(), kind<S, Q4_K>(), kind<S, Q5_K>(), kind<S, Q6_K>(),
    kind<S, IQ4_XS>(), kind_of_floats<S, F32>(), kind_of_floats<S, F16>(), kind_of_floats<S, BF16>()};

template <class S> constexpr Path path(const char *name) {
    return {name, KINDS<S>, int(sizeof KINDS<S> / sizeof *KINDS<S>), quantise<S>, scores<S>, softmax<S>, values<S>,
            halves_to_floats<S>};
}

} }  // namespace paceline
