// The definition of what every path computes, in plain C++: tests compare with it, nothing runs on it.
#include "attention.h"

namespace paceline { namespace {

struct Scalar {
    static constexpr int L = 8, WIDE = 1, FLOAT_COLUMNS = 8, KEYS = 2;
    static constexpr bool PAIRED = false;
    struct F { float x[L]; };
    struct I { uint8_t b[4 * L]; };
    struct Whole { int32_t x[L]; };

    template <class G> static F each(G g) { F o; for (int i = 0; i < L; i++) o.x[i] = g(i); return o; }
    static float half(uint16_t h) {
        const uint32_t sign = uint32_t(h >> 15) << 31, e = h >> 10 & 31, m = h & 1023;
        float f;
        uint32_t bits = sign | (e + 112) << 23 | m << 13;
        if (e == 31) bits = sign | 255u << 23 | m << 13;
        if (e == 0) { f = float(m) / 16777216.0f; return sign ? -f : f; }
        memcpy(&f, &bits, 4);
        return f;
    }
    static float brain(uint16_t b) { const uint32_t bits = uint32_t(b) << 16; float f; memcpy(&f, &bits, 4); return f; }
    static float power(uint8_t e) {  // 2^(e - 128); the two below the normal ones as zero
        const uint32_t bits = uint32_t(e < 1 ? 0 : e - 1) << 23;
        float f;
        memcpy(&f, &bits, 4);
        return f;
    }

    static F load(const float *p) { return each([&](int i) { return p[i]; }); }
    static void store(float *p, F a) { for (int i = 0; i < L; i++) p[i] = a.x[i]; }
    static F splat(float x) { return each([&](int) { return x; }); }
    static F zero() { return splat(0.0f); }
    static F halves(const void *p) { return each([&](int i) { return half(u16(static_cast<const uint8_t *>(p) + 2 * i)); }); }
    static F brains(const void *p) { return each([&](int i) { return brain(u16(static_cast<const uint8_t *>(p) + 2 * i)); }); }
    static F powers(const uint8_t *p) { return each([&](int i) { return power(p[i]); }); }
    static F small(const uint8_t *p) { return each([&](int i) { return float(int8_t(p[i])); }); }
    static F add(F a, F b) { return each([&](int i) { return a.x[i] + b.x[i]; }); }
    static F sub(F a, F b) { return each([&](int i) { return a.x[i] - b.x[i]; }); }
    static F mul(F a, F b) { return each([&](int i) { return a.x[i] * b.x[i]; }); }
    static F fma(F a, F b, F c) { return each([&](int i) { return fmaf(a.x[i], b.x[i], c.x[i]); }); }
    static F max(F a, F b) { return each([&](int i) { return a.x[i] > b.x[i] ? a.x[i] : b.x[i]; }); }
    static F negative(F a) { return each([&](int i) { return -a.x[i]; }); }
    static F magnitude(F a) { return each([&](int i) { return fabsf(a.x[i]); }); }
    static F round(F a) { return each([&](int i) { return nearbyintf(a.x[i]); }); }
    static F power_of_two(F n) { return each([&](int i) { return ldexpf(1.0f, int(n.x[i])); }); }
    static F without_below(F a, float limit, F b) { return each([&](int i) { return a.x[i] <= limit ? 0.0f : b.x[i]; }); }
    static F hidden_below(F a, float limit, F b) { return each([&](int i) { return a.x[i] <= limit ? -INFINITY : b.x[i]; }); }
    static float largest(F a) { float m = a.x[0]; for (int i = 1; i < L; i++) m = m > a.x[i] ? m : a.x[i]; return m; }
    static float total(F a) { float t = 0; for (int i = 0; i < L; i++) t += a.x[i]; return t; }
    static int64_t whole_sum(F a) { int64_t t = 0; for (int i = 0; i < L; i++) t += int32_t(nearbyintf(a.x[i])); return t; }
    static F fold(const F *a) { return add(a[0], a[1]); }
    static F reduce(const F *a) {
        return each([&](int i) {
            const float *x = a[i].x;
            return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
        });
    }

    template <class G> static I every(G g) { I o; for (int i = 0; i < 4 * L; i++) o.b[i] = uint8_t(g(i)); return o; }
    static I bytes(const void *p) { I o; memcpy(o.b, p, sizeof o.b); return o; }
    static I byte(int x) { return every([&](int) { return x; }); }
    static I both(I a, I b) { return every([&](int i) { return a.b[i] & b.b[i]; }); }
    static I either(I a, I b) { return every([&](int i) { return a.b[i] | b.b[i]; }); }
    template <int N> static I left(I a) { return every([&](int i) { return a.b[i] << N; }); }
    template <int N> static I right(I a) { return every([&](int i) { return a.b[i] >> N; }); }
    static I look_up(I a, const int8_t *table) { return every([&](int i) { return table[a.b[i]]; }); }
    template <class G> static I wholes(G g) {
        I o;
        for (int r = 0; r < L; r++) { const int32_t t = g(r); memcpy(o.b + 4 * r, &t, 4); }
        return o;
    }
    static int32_t whole(I a, int r) { int32_t t; memcpy(&t, a.b + 4 * r, 4); return t; }
    template <int TOP, int G> static I dot(const I *v, const int8_t *q) {
        return wholes([&](int r) {
            int32_t t = 0;
            for (int i = 0; i < 4 * G; i++) t += int32_t(v[i / 4].b[4 * r + i % 4]) * q[i];
            return t;
        });
    }
    static I dot_signed(const I *v, const Activations &y) {
        return wholes([&](int r) {
            int32_t t = 0;
            for (int i = 0; i < 32; i++) t += int32_t(int8_t(v[i / 4].b[4 * r + i % 4])) * y.q[i];
            return t;
        });
    }
    template <int K> static I times(int32_t x) { return wholes([&](int) { return K * x; }); }
    static I subtract(I a, I b) { return wholes([&](int r) { return whole(a, r) - whole(b, r); }); }
    static F real(I a) { return each([&](int r) { return float(whole(a, r)); }); }

    static void narrow(const float *x, float scale, int8_t *q) { for (int i = 0; i < 32; i++) q[i] = int8_t(nearbyintf(x[i] * scale)); }
    static int sum_16(const int8_t *q) { int t = 0; for (int i = 0; i < 16; i++) t += q[i]; return t; }
};

}  // namespace

constexpr Path scalar_path = path<Scalar>("scalar");

}  // namespace paceline
