// Every path against the scalar one, bit for bit, and that one against plain sums in double precision; over random
// shapes. Arguments: seed, rounds. Prints a line a path; exits with 1 at the first difference.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "path.h"

using namespace paceline;

static std::mt19937 rng;
static int below(int n) { return int(rng() % unsigned(n)); }
static float normal() { return std::normal_distribution<float>()(rng); }

[[noreturn]] static void fail(const char *what, const char *path, int a, int b) {
    printf("%s: %s differs (%d, %d)\n", path, what, a, b);
    exit(1);
}
static void same(const std::vector<float> &x, const std::vector<float> &y, const char *what, const char *path, int a) {
    for (size_t i = 0; i < x.size(); i++)
        if (memcmp(&x[i], &y[i], 4) && !(x[i] != x[i] && y[i] != y[i])) {
            printf("%.9g %.9g at %zu of %zu\n", double(x[i]), double(y[i]), i, x.size());
            fail(what, path, a, int(i));
        }
}

// Random weights as ggml stores them. Scales must be numbers of a usual size, wherever a type has them.
static uint16_t half(float f) {
    uint32_t x;
    memcpy(&x, &f, 4);
    const int e = int(x >> 23 & 255) - 112;
    return e <= 0 ? uint16_t(x >> 31 << 15) : uint16_t(x >> 31 << 15 | unsigned(e) << 10 | (x >> 13 & 1023));
}
static void put_half(uint8_t *p) { const uint16_t h = half(normal() * 0.01f); memcpy(p, &h, 2); }
static std::vector<uint8_t> random_weights(const Kind &k, int64_t rows, int64_t blocks) {
    std::vector<uint8_t> w(size_t(rows * blocks) * k.block_bytes);
    for (auto &b : w) b = uint8_t(rng());
    for (int64_t i = 0; i < rows * blocks; i++) {
        uint8_t *p = w.data() + size_t(i) * k.block_bytes;
        switch (k.type) {
            case 0: { const float f = normal(); memcpy(p, &f, 4); break; }
            case 1: put_half(p); break;
            case 30: { const float f = normal(); memcpy(p, reinterpret_cast<const char *>(&f) + 2, 2); break; }
            case 39: p[0] = uint8_t(110 + below(20)); break;
            case 10: put_half(p + 80), put_half(p + 82); break;
            case 11: put_half(p + 108); break;
            case 14: put_half(p + 208); break;
            case 3: case 7: case 12: case 13: put_half(p), put_half(p + 2); break;
            default: put_half(p);
        }
    }
    return w;
}

static std::vector<float> product(const Path &path, const Kind &k, const std::vector<uint8_t> &w, int rows, int64_t blocks,
                                  const std::vector<float> &x, int n, int64_t width) {
    const int64_t per = width / 32;
    std::vector<Activations> a(size_t(n * (per + 1)));
    std::vector<const void *> columns(size_t(n), nullptr);
    for (int c = 0; c < n; c++) {
        const float *from = x.data() + c * width;
        if (k.quantised) path.quantise(from, a.data() + c * per, per);
        columns[size_t(c)] = k.quantised ? static_cast<const void *>(a.data() + c * per) : from;
    }
    std::vector<float> y(size_t(n * rows), -7.0f);
    std::vector<uint8_t> tile(k.tile_bytes * size_t(blocks));
    for (int first = 0; first < rows; first += k.rows) {
        std::vector<const uint8_t *> from(size_t(k.rows), nullptr);
        for (int r = 0; r < k.rows && first + r < rows; r++)
            from[size_t(r)] = w.data() + size_t((first + r) * blocks) * k.block_bytes;
        k.pack(tile.data(), from.data(), blocks);
        for (int c = 0; c < n;) {
            const int m = std::min(n - c, 1 + below(k.most));
            float *out[MOST];
            for (int i = 0; i < m; i++) out[i] = y.data() + (c + i) * rows + first;
            k.product[m](tile.data(), columns.data() + c, blocks, out, std::min(k.rows, rows - first));
            c += m;
        }
    }
    return y;
}

static void products(const Path &path, int round) {
    const int i = round % scalar_path.n_kinds;
    const Kind &k = path.kinds[i], &reference = scalar_path.kinds[i];
    const int rows = 1 + below(40), n = 1 + below(20);
    const int64_t blocks = k.block == 1 ? 32 * (1 + below(6)) + (k.quantised ? 0 : below(32)) : 1 + below(5);
    const int64_t width = blocks * k.block;
    const auto w = random_weights(k, rows, blocks);
    std::vector<float> x(size_t(n * width));
    for (auto &f : x) f = normal() * (below(50) ? 1.0f : 30.0f);
    if (!below(8)) std::fill(x.begin(), x.begin() + width / 2, 0.0f);
    const auto y = product(path, k, w, rows, blocks, x, n, width);
    same(y, product(scalar_path, reference, w, rows, blocks, x, n, width), "a product", path.name, k.type);
    if (&path != &scalar_path) return;
    // Weights spelled out by products with one activation each; then a sum in double precision. Bytes of activations
    // are 1 part in 254 off at most, each.
    std::vector<float> one(size_t(width), 0.0f);
    std::vector<double> sum(y.size(), 0.0), size(y.size(), 0.0);
    for (int64_t j = 0; j < width; j++) {
        one[size_t(j)] = 127.0f;
        const auto column = product(path, k, w, rows, blocks, one, 1, width);
        one[size_t(j)] = 0.0f;
        for (int c = 0; c < n; c++)
            for (int r = 0; r < rows; r++) {
                const double weight = double(column[size_t(r)]) / 127.0;
                float most = 0;
                for (int64_t q = j / 32 * 32; k.quantised && q < j / 32 * 32 + 32; q++) most = std::max(most, std::fabs(x[size_t(c * width + q)]));
                sum[size_t(c * rows + r)] += weight * double(x[size_t(c * width + j)]);
                size[size_t(c * rows + r)] += std::fabs(weight) * (double(most) / 253.0 + 1e-5 * std::fabs(double(x[size_t(c * width + j)])));
            }
    }
    for (size_t j = 0; j < y.size(); j++)
        if (std::fabs(double(y[j]) - sum[j]) > size[j] + 1e-6) {
            printf("%g %g\n", double(y[j]), sum[j]);
            fail("a sum", path.name, k.type, int(j));
        }
}

static void halves_of(const std::vector<float> &x, int type, std::vector<uint8_t> &out) {
    const size_t size = type == 0 ? 4 : 2;
    out.resize(x.size() * size);
    for (size_t i = 0; i < x.size(); i++) {
        const uint16_t h = half(x[i]);
        if (type == 0) memcpy(&out[4 * i], &x[i], 4);
        else memcpy(&out[2 * i], type == 1 ? reinterpret_cast<const char *>(&h) : reinterpret_cast<const char *>(&x[i]) + 2, 2);
    }
}

static void attention(const Path &path) {
    const int types[] = {0, 1, 30}, type = types[below(3)], width = 1 + below(200), n = 1 + below(9), cells = 1 + below(300);
    const int64_t padded = (width + 15) / 16 * 16, stride = (cells + 15) / 16 * 16 + 16, wide = (width + 31) / 32 * 32;
    std::vector<float> raw(size_t(cells) * size_t(width));
    for (auto &f : raw) f = normal();
    std::vector<uint8_t> data;
    halves_of(raw, type, data);
    const Cells k{reinterpret_cast<const char *>(data.data()), data.size() / size_t(cells), type, width, nullptr};
    std::vector<int32_t> order;
    std::vector<float> mask(size_t(stride), 0.0f);
    for (int c = 0; c < cells; c++)
        if (below(4)) { mask[order.size()] = below(3) ? (below(2) ? -float(below(5)) : 0.0f) : -INFINITY; order.push_back(c); }
    std::shuffle(order.begin(), order.end(), rng);
    const auto m = int64_t(order.size());
    std::vector<float> queries(size_t(n * padded), 0.0f);
    for (int q = 0; q < n; q++)
        for (int d = 0; d < width; d++) queries[size_t(q * padded + d)] = normal() * 0.2f;
    const float cap = below(3) ? 0.0f : 5.0f, slope = below(2) ? 1.0f : 0.25f, sink = normal();
    const float *sinks = below(2) ? &sink : nullptr;
    std::vector<float> all[2];
    for (int i = 0; i < 2; i++) {
        const Path &of = i ? path : scalar_path;
        std::vector<float> scores(size_t(n * stride), 0.0f), out(size_t(n * wide));
        for (int64_t from = 0; from < m; from += 64)  // in pieces, which change nothing
            of.scores(k, order.data(), from, std::min(m, from + 64), queries.data(), n, scores.data(), stride);
        for (int q = 0; q < n; q++) all[i].insert(all[i].end(), &scores[size_t(q * stride)], &scores[size_t(q * stride)] + m);
        for (int q = 0; q < n; q++) all[i].push_back(of.softmax(&scores[size_t(q * stride)], mask.data(), m, cap, slope, sinks));
        for (int q = 0; q < n; q++) all[i].insert(all[i].end(), &scores[size_t(q * stride)], &scores[size_t(q * stride)] + m);
        for (int start = 0; start < width; start += SLICE) of.values(k, order.data(), m, scores.data(), stride, n, start, out.data(), wide);
        for (int q = 0; q < n; q++) all[i].insert(all[i].end(), &out[size_t(q * wide)], &out[size_t(q * wide)] + width);
        // A hidden cell changes nothing, wherever it stands.
        if (i == 0) continue;
        std::vector<int32_t> fewer;
        std::vector<float> weights(size_t(n * stride), 0.0f), again(size_t(n * wide));
        for (int64_t c = 0; c < m; c++)
            if (mask[size_t(c)] > -1e30f) {
                for (int q = 0; q < n; q++) weights[size_t(q * stride) + fewer.size()] = scores[size_t(q * stride + c)];
                fewer.push_back(order[size_t(c)]);
            }
        for (int start = 0; start < width; start += SLICE) of.values(k, fewer.data(), int64_t(fewer.size()), weights.data(), stride, n, start, again.data(), wide);
        same(out, again, "a sum without hidden cells", path.name, width);
    }
    same(all[0], all[1], "attention", path.name, width);
    if (&path != &scalar_path) return;
    // In double precision.
    for (int q = 0; q < n; q++) {
        std::vector<double> s(size_t(m), 0.0), o(size_t(width), 0.0);
        double top = sinks ? double(sink) : -INFINITY, total = 0;
        const auto value = [&](int64_t c, int d) {
            float f = raw[size_t(order[size_t(c)] * width + d)];
            if (type == 1) path.halves(reinterpret_cast<const uint16_t *>(data.data()) + order[size_t(c)] * width + d, &f, 1);
            if (type == 30) { uint32_t b; memcpy(&b, &f, 4); b &= 0xffff0000u; memcpy(&f, &b, 4); }
            return double(f);
        };
        for (int64_t c = 0; c < m; c++) {
            for (int d = 0; d < width; d++) s[size_t(c)] += double(queries[size_t(q * padded + d)]) * value(c, d);
            if (cap != 0.0f) s[size_t(c)] = double(cap) * std::tanh(s[size_t(c)]);
            s[size_t(c)] += double(slope) * double(mask[size_t(c)]);
            top = std::max(top, s[size_t(c)]);
        }
        for (int64_t c = 0; c < m; c++) {
            const double p = top > -1e30 ? std::exp(s[size_t(c)] - top) : 0.0;
            total += p;
            for (int d = 0; d < width; d++) o[size_t(d)] += p * value(c, d);
        }
        if (sinks) total += std::exp(double(sink) - top);
        const float *have = all[0].data() + n * m * 2 + n + q * width;
        const double sum = double(all[0][size_t(n * m + q)]);
        if (std::fabs(sum - total) > 1e-4 * (1 + total)) { printf("%g %g\n", sum, total); fail("a softmax's sum", path.name, int(m), q); }
        for (int d = 0; d < width; d++)
            if (std::fabs(double(have[d]) - o[size_t(d)]) > 1e-4 * (1 + total)) fail("attention in double precision", path.name, width, d);
    }
}

static void activations(const Path &path) {
    std::vector<float> x(256);
    for (auto &f : x) f = below(10) ? normal() : (below(5) ? 0.0f : normal() * 1e-33f);
    if (!below(6)) x[size_t(below(256))] = below(2) ? INFINITY : NAN;
    std::vector<Activations> a(8), b(8);
    path.quantise(x.data(), a.data(), 8);
    scalar_path.quantise(x.data(), b.data(), 8);
    for (int i = 0; i < 8; i++) {
        same({a[size_t(i)].d, a[size_t(i)].ds}, {b[size_t(i)].d, b[size_t(i)].ds}, "a scale", path.name, i);
        if (memcmp(&a[size_t(i)].sum, &b[size_t(i)].sum, 40)) fail("activations", path.name, i, 0);
    }
}

int main(int argc, char **argv) {
    rng.seed(argc > 1 ? unsigned(atoi(argv[1])) : 0u);
    const int rounds = argc > 2 ? atoi(argv[2]) : 200;
    std::vector<const Path *> all = {&scalar_path};
#ifdef WITH_AVX2
    all.push_back(&avx2_path);
#endif
#ifdef WITH_AVXVNNI
    all.push_back(&avxvnni_path);
#endif
#ifdef WITH_AVX512
    all.push_back(&avx512_path);
#endif
#ifdef WITH_NEON
    all.push_back(&neon_path);
#endif
#ifdef WITH_I8MM
    all.push_back(&i8mm_path);
#endif
    for (const Path *path : all) {
        for (int i = 0; i < rounds; i++) {
            products(*path, i);
            if (i % 4 == 0) attention(*path);
            activations(*path);
        }
        printf("%s: the same\n", path->name);
    }
}
