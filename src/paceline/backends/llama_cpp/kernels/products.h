// Products of a tile of weights with up to MOST columns; each weight is read and unpacked once. S: the vectors of an
// instruction set; a lane is a row of the tile.
#pragma once
#include "types.h"

namespace paceline { namespace {

constexpr int log2_of(int n) { return n <= 1 ? 0 : 1 + log2_of(n / 2); }

// A block of a tile: scales of all rows, then the codes of 32 weights at a time, in planes. A vector holds four
// neighbouring weights of each row. Weights 4g..4g+3 are group g, of 0..7.
template <class S, class T> struct Layout {
    static constexpr int L = S::L, parts = T::block / 32;
    static constexpr int n_scales = T::scales == PARTS_32 ? 8 : T::scales == PARTS_16 ? 16 : 0;
    static constexpr int offsets = T::scales == EXPONENT ? L : 2 * L;
    static constexpr int scales = offsets + (T::offset == NONE ? 0 : 2 * L);
    static constexpr int mins = scales + n_scales * L;
    static constexpr int codes = mins + (T::offset == SUBTRACTED ? n_scales * L : 0);
    static constexpr int nibbles = T::planes & NIBBLES ? 16 * L : 0, crumbs = T::planes & CRUMBS ? 8 * L : 0;
    static constexpr int bits = T::planes & BITS ? 4 * L : 0, whole = T::planes & BYTES ? 32 * L : 0;
    static constexpr int part = nibbles + crumbs + bits + whole;
    static constexpr int bytes = codes + parts * part;
};

// The low bits of a code are in the first plane, the high bits in the second.
template <class T> constexpr int high_bit() { return T::planes & NIBBLES ? 4 : 2; }

// Write 32 codes of a row into the planes of a tile: four neighbouring bytes in each vector.
template <class S, class T> inline void pack_part(uint8_t *to, const uint8_t *q) {
    using Y = Layout<S, T>;
    constexpr int V = 4 * S::L;
    uint8_t bytes[32];
    const auto put = [&](int vectors) {
        for (int g = 0; g < vectors; g++, to += V) memcpy(to, bytes + 4 * g, 4);
    };
    if (Y::whole) { memcpy(bytes, q, 32); put(8); }
    if (Y::nibbles) {
        for (int i = 0; i < 16; i++) bytes[i] = uint8_t((q[i] & 15) | q[i + 16] << 4);
        put(4);
    }
    if (Y::crumbs) {
        constexpr int low = Y::nibbles ? 4 : 0;
        uint64_t eight, all = 0;
        for (int e = 0; e < 4; e++) {
            memcpy(&eight, q + 8 * e, 8);
            all |= (eight >> low & 0x0303030303030303u) << (2 * e);
        }
        memcpy(bytes, &all, 8);
        put(2);
    }
    if (Y::bits) {
        uint32_t four, all = 0;
        for (int g = 0; g < 8; g++) {
            memcpy(&four, q + 4 * g, 4);
            all |= (four >> high_bit<T>() & 0x01010101u) << g;
        }
        memcpy(bytes, &all, 4);
        put(1);
    }
}

// The same for a block whose codes are already in the tile's order.
template <class S, class T> inline void copy_part(uint8_t *to, const uint8_t *block) {
    constexpr int V = 4 * S::L;
    for (int g = 0; g < 4; g++, to += V) memcpy(to, block + T::nibbles_at + 4 * g, 4);
    if constexpr (T::fifths_at != 0) {  // bit 4g + e becomes bit g of byte e
        const uint32_t bits = u32(block + T::fifths_at);
        uint32_t bytes = 0;
        for (int e = 0; e < 4; e++) {
            uint32_t x = bits >> e & 0x11111111u;
            x = (x | x >> 3) & 0x03030303u;
            x = (x | x >> 6) & 0x000f000fu;
            bytes |= ((x | x >> 12) & 255u) << (8 * e);
        }
        memcpy(to, &bytes, 4);
    }
}

template <class S, class T> void pack(uint8_t *out, const uint8_t *const *rows, int64_t blocks) {
    using Y = Layout<S, T>;
    constexpr int L = S::L;
    for (int64_t b = 0; b < blocks; b++, out += Y::bytes) {
        if (!rows[L - 1]) memset(out, 0, Y::bytes);
        for (int r = 0; r < L; r++) {
            if (!rows[r]) continue;
            Codes c;
            T::read(rows[r] + b * T::bytes, c);
            if (T::scales == EXPONENT) out[r] = uint8_t(c.d);
            else memcpy(out + 2 * r, &c.d, 2);
            if (T::offset != NONE) memcpy(out + Y::offsets + 2 * r, &c.m, 2);
            for (int j = 0; j < Y::n_scales; j++) {
                out[Y::scales + j * L + r] = uint8_t(c.s[j]);
                if (T::offset == SUBTRACTED) out[Y::mins + j * L + r] = c.t[j];
            }
            if constexpr (T::nibbles_at != 0) copy_part<S, T>(out + Y::codes + 4 * r, rows[r] + b * T::bytes);
            else
                for (int j = 0; j < Y::parts; j++) pack_part<S, T>(out + Y::codes + j * Y::part + 4 * r, c.q + 32 * j);
        }
    }
}

template <class S, int FROM, int TO> inline typename S::I moved(typename S::I x) {  // bits at FROM to TO
    if constexpr (FROM > TO) return S::template right<FROM - TO>(x);
    else if constexpr (FROM < TO) return S::template left<TO - FROM>(x);
    else return x;
}

template <class S, int G, int WIDTH, int HIGH> inline void add_high(typename S::I *v, typename S::I plane) {
    // The bits at WIDTH * (group / n) of a byte belong to a group.
    constexpr int from = WIDTH == 1 ? G : G / 2 * 2;
    v[G] = S::either(v[G], S::both(moved<S, from, HIGH>(plane), S::byte((WIDTH == 1 ? 1 : 3) << HIGH)));
}

// The codes of 32 weights of each row as bytes; v[g] is group g.
template <class S, class T> inline void unpack(const uint8_t *p, typename S::I *v) {
    using I = typename S::I;
    using Y = Layout<S, T>;
    constexpr int V = 4 * S::L;
    if constexpr (Y::whole != 0) {
        for (int g = 0; g < 8; g++) v[g] = S::bytes(p + V * g);
    } else if constexpr (Y::nibbles != 0) {
        for (int g = 0; g < 4; g++) {
            const I t = S::bytes(p + V * g);
            v[g] = S::both(t, S::byte(15));
            v[g + 4] = S::both(S::template right<4>(t), S::byte(15));
        }
    } else {
        const I three = S::byte(3), t = S::bytes(p), u = S::bytes(p + V);
        v[0] = S::both(t, three), v[2] = S::both(S::template right<2>(t), three);
        v[4] = S::both(S::template right<4>(t), three), v[6] = S::both(S::template right<6>(t), three);
        v[1] = S::both(u, three), v[3] = S::both(S::template right<2>(u), three);
        v[5] = S::both(S::template right<4>(u), three), v[7] = S::both(S::template right<6>(u), three);
    }
    p += Y::nibbles;
    if constexpr (Y::nibbles != 0 && Y::crumbs != 0) {
        const I t = S::bytes(p), u = S::bytes(p + V);
        add_high<S, 0, 2, 4>(v, t), add_high<S, 2, 2, 4>(v, t), add_high<S, 4, 2, 4>(v, t), add_high<S, 6, 2, 4>(v, t);
        add_high<S, 1, 2, 4>(v, u), add_high<S, 3, 2, 4>(v, u), add_high<S, 5, 2, 4>(v, u), add_high<S, 7, 2, 4>(v, u);
    }
    p += Y::crumbs;
    if constexpr (Y::bits != 0) {
        constexpr int H = high_bit<T>();
        const I t = S::bytes(p);
        add_high<S, 0, 1, H>(v, t), add_high<S, 1, 1, H>(v, t), add_high<S, 2, 1, H>(v, t), add_high<S, 3, 1, H>(v, t);
        add_high<S, 4, 1, H>(v, t), add_high<S, 5, 1, H>(v, t), add_high<S, 6, 1, H>(v, t), add_high<S, 7, 1, H>(v, t);
    }
    if constexpr (T::codebook == TABLE)
        for (int g = 0; g < 8; g++) v[g] = S::look_up(v[g], NON_LINEAR);
    if constexpr (T::codebook == SHIFTED_TABLE)
        for (int g = 0; g < 8; g++) v[g] = S::look_up(v[g], FLOAT_4_BITS);
}

template <class T> constexpr bool is_signed() { return T::codebook == SIGNED || T::codebook == TABLE; }

template <class S, class T> inline typename S::I centred(typename S::I sum, int32_t of_activations) {
    if constexpr (T::bias == 0) return sum;
    else return S::subtract(sum, S::template times<T::bias>(of_activations));
}

// sums[i][p]: sum of (q - bias) * activation over the p-th part of 32 weights of each row, for `COLUMNS` columns: 2 if
// the instruction set multiplies two at once.
template <class S, class T, int PARTS, int COLUMNS>
inline __attribute__((always_inline)) void dots(const typename S::I *v, const Activations *const *y,
                                                typename S::I (*sums)[PARTS]) {
    constexpr int G = 8 / PARTS;
#pragma GCC unroll 2
    for (int p = 0; p < PARTS; p++) {
        if constexpr (COLUMNS == 2)
            S::template dot_pair<T::top, G>(v + G * p, y[0]->q + 4 * G * p, y[1]->q + 4 * G * p, sums[0][p], sums[1][p]);
        else if constexpr (is_signed<T>()) sums[0][p] = S::dot_signed(v, *y[0]);
        else sums[0][p] = S::template dot<T::top, G>(v + G * p, y[0]->q + 4 * G * p);
#pragma GCC unroll 2
        for (int i = 0; i < COLUMNS; i++)
            sums[i][p] = centred<S, T>(sums[i][p], PARTS == 1 ? y[i]->sum : y[i]->h[p]);
    }
}

// One block of a tile with N columns; a[c][at] are the block's first activations.
template <class S, class T, int N>
inline __attribute__((always_inline)) void block(const uint8_t *w, const Activations *const *a, int64_t at,
                                                 typename S::F *acc) {
    using F = typename S::F;
    using I = typename S::I;
    using Y = Layout<S, T>;
    constexpr int L = S::L;
    F D, M;
    if constexpr (T::scales == EXPONENT) D = S::powers(w);
    else D = S::halves(w);
    if constexpr (T::offset != NONE) M = S::halves(w + Y::offsets);
    if constexpr (T::offset == SUBTRACTED) M = S::negative(M);
    for (int j = 0; j < Y::parts; j++) {
        I v[8];
        unpack<S, T>(w + Y::codes + j * Y::part, v);
        constexpr int PARTS = T::scales == PARTS_16 ? 2 : 1;
        F d[PARTS], m[PARTS];
#pragma GCC unroll 2
        for (int p = 0; p < PARTS; p++) {
            d[p] = D;
            if constexpr (T::offset != NONE) m[p] = M;
            if constexpr (Y::n_scales != 0) d[p] = S::mul(D, S::small(w + Y::scales + (PARTS * j + p) * L));
            if constexpr (T::offset == SUBTRACTED) m[p] = S::mul(M, S::small(w + Y::mins + (PARTS * j + p) * L));
        }
        const auto add = [&](int c, const I *s) __attribute__((always_inline)) {
            const Activations &y = a[c][at + j];
            if constexpr (PARTS == 1) {
                acc[c] = S::fma(S::mul(d[0], S::splat(y.d)), S::real(s[0]), acc[c]);
                if constexpr (T::offset != NONE) acc[c] = S::fma(m[0], S::splat(y.ds), acc[c]);
            } else {
                F t = S::fma(d[1], S::real(s[1]), S::mul(d[0], S::real(s[0])));
                if constexpr (T::offset != NONE) t = S::fma(m[1], S::splat(y.h[1]), S::fma(m[0], S::splat(y.h[0]), t));
                acc[c] = S::fma(t, S::splat(y.d), acc[c]);
            }
        };
        I sums[2][PARTS];
        constexpr int PAIRED = S::PAIRED ? N / 2 * 2 : 0;
#pragma GCC unroll 4
        for (int c = 0; c < PAIRED; c += 2) {
            const Activations *y[2] = {&a[c][at + j], &a[c + 1][at + j]};
            if constexpr (S::PAIRED) dots<S, T, PARTS, 2>(v, y, sums);
            add(c, sums[0]), add(c + 1, sums[1]);
        }
#pragma GCC unroll 8
        for (int c = PAIRED; c < N; c++) {
            const Activations *y[1] = {&a[c][at + j]};
            dots<S, T, PARTS, 1>(v, y, sums);
            add(c, sums[0]);
        }
    }
}

template <class S> inline void put(float *out, typename S::F x, int rows) {
    if (rows >= S::L) { S::store(out, x); return; }
    float all[S::L];
    S::store(all, x);
    for (int r = 0; r < rows; r++) out[r] = all[r];
}

constexpr size_t AHEAD = 2048;  // prefetch distance in bytes

template <class S, class T, int N>
void product(const uint8_t *tile, const void *const *columns, int64_t blocks, float *const *out, int rows) {
    using Y = Layout<S, T>;
    typename S::F acc[N];
    const Activations *a[N];
    for (int c = 0; c < N; c++) { acc[c] = S::zero(); a[c] = static_cast<const Activations *>(columns[c]); }
    for (int64_t b = 0; b < blocks; b++, tile += Y::bytes) {
        constexpr size_t ahead = Y::bytes > AHEAD ? Y::bytes : AHEAD;
        for (size_t o = 0; o < Y::bytes; o += 64) __builtin_prefetch(tile + ahead + o);
        block<S, T, N>(tile, a, b * Y::parts, acc);
    }
    for (int c = 0; c < N; c++) put<S>(out[c], acc[c], rows);
}

// Float weights: W::F vectors of rows, with separate sums of even and odd matrix columns, so that one
// product does not wait for the previous one.
template <class S, class W> void pack_floats(uint8_t *out, const uint8_t *const *rows, int64_t n) {
    constexpr int R = S::L * S::WIDE;
    constexpr int64_t NEAR = 64;  // columns that rows write to alternately
    for (int64_t k = 0; k < n; k += NEAR)
        for (int r = 0; r < R; r++)
            for (int64_t i = k; i < n && i < k + NEAR; i++) {
                uint8_t *to = out + (i * R + r) * W::bytes;
                if (rows[r]) memcpy(to, rows[r] + i * W::bytes, W::bytes);
                else memset(to, 0, W::bytes);
            }
}

template <class S, class W> inline typename S::F weights(const uint8_t *p) {
    if constexpr (W::type == F32::type) return S::load(reinterpret_cast<const float *>(p));
    else if constexpr (W::type == F16::type) return S::halves(p);
    else return S::brains(p);
}

template <class S, class W, int N>
void product_floats(const uint8_t *tile, const void *const *columns, int64_t n, float *const *out, int rows) {
    constexpr int V = S::WIDE, R = S::L * V;
    typename S::F acc[2][N][V];
    const float *x[N];
    for (int c = 0; c < N; c++) {
        x[c] = static_cast<const float *>(columns[c]);
        for (int v = 0; v < V; v++) acc[0][c][v] = acc[1][c][v] = S::zero();
    }
    int64_t k = 0;
    for (; k + 2 <= n; k += 2, tile += 2 * R * W::bytes) {
        for (size_t o = 0; o < 2 * R * W::bytes; o += 64) __builtin_prefetch(tile + AHEAD + o);
#pragma GCC unroll 2
        for (int u = 0; u < 2; u++)
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) {
                const auto w = weights<S, W>(tile + (u * R + v * S::L) * W::bytes);
#pragma GCC unroll 8
                for (int c = 0; c < N; c++) acc[u][c][v] = S::fma(w, S::splat(x[c][k + u]), acc[u][c][v]);
            }
    }
    if (k < n)
        for (int v = 0; v < V; v++)
            for (int c = 0; c < N; c++)
                acc[0][c][v] = S::fma(weights<S, W>(tile + v * S::L * W::bytes), S::splat(x[c][k]), acc[0][c][v]);
    for (int c = 0; c < N; c++)
        for (int v = 0; v < V; v++)
            put<S>(out[c] + v * S::L, S::add(acc[0][c][v], acc[1][c][v]), rows - v * S::L);
}

constexpr float LEAST = 1e-30f;  // a smaller scale counts as zero

// Quantise activations to int8, 32 to a scale; a NaN makes the scale NaN.
template <class S> void quantise(const float *x, Activations *out, int64_t blocks) {
    for (int64_t b = 0; b < blocks; b++, x += 32) {
        typename S::F most = S::zero(), none = S::zero();
        for (int i = 0; i < 32; i += S::L) {
            const auto u = S::load(x + i);
            most = S::max(most, S::magnitude(u));
            none = S::add(none, S::mul(u, S::zero()));
        }
        const float d = (S::largest(most) + S::total(none)) / 127.0f;
        Activations &o = out[b];
        if (d > LEAST) S::narrow(x, 1.0f / d, o.q);
        else memset(o.q, 0, 32);
        o.h[0] = int16_t(S::sum_16(o.q)), o.h[1] = int16_t(S::sum_16(o.q + 16));
        o.sum = o.h[0] + o.h[1];
        o.d = d > LEAST || d != d ? d : 0.0f;
        o.ds = o.d * float(o.sum);
    }
}

} }  // namespace paceline
