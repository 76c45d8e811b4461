// Products with weights repacked in tiles: MUL_MAT, and MUL_MAT_ID for experts.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "calls.h"
#include "tiles.h"

namespace paceline {

using ggml::ComputeParams;
using ggml::Tensor;

const Kind *kind_of(const Path &path, const Tensor *w) {
    if (w->ne[0] <= 0 || w->ne[1] <= 0 || w->ne[2] <= 0 || w->ne[3] <= 0) return nullptr;
    for (int i = 0; i < path.n_kinds; i++)
        if (path.kinds[i].type == w->type && w->ne[0] % path.kinds[i].block == 0) return &path.kinds[i];
    return nullptr;
}

static int64_t planes_of(const Tensor *w) { return w->ne[2] * w->ne[3]; }

size_t repacked_size(const Kind &kind, const Tensor *w) {
    size_t size;
    if (__builtin_mul_overflow(size_t(w->ne[0] / kind.block), kind.tile_bytes, &size) ||
        __builtin_mul_overflow(size, size_t(tiles_of(kind, w)), &size) ||
        __builtin_mul_overflow(size, size_t(w->ne[2]), &size) || __builtin_mul_overflow(size, size_t(w->ne[3]), &size))
        return SIZE_MAX / 2;  // an impossible size
    return size;
}

void repack(const Kind &kind, Tensor *w, const void *data) {
    const int64_t blocks = w->ne[0] / kind.block, tiles = tiles_of(kind, w), all = tiles * planes_of(w);
    const size_t row = size_t(blocks) * kind.block_bytes, tile = tile_size(kind, w);
    const auto *from = static_cast<const uint8_t *>(data);
    auto *to = static_cast<uint8_t *>(w->data);
    const auto part = [&](int64_t start, int64_t end) {
        std::vector<const uint8_t *> rows(size_t(kind.rows));
        for (int64_t t = start; t < end; t++) {
            const int64_t first = t % tiles * kind.rows;
            for (int r = 0; r < kind.rows; r++)
                rows[size_t(r)] = first + r < w->ne[1] ? from + (t / tiles * w->ne[1] + first + r) * int64_t(row) : nullptr;
            kind.pack(to + size_t(t) * tile, rows.data(), blocks);
        }
    };
    const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
    const auto n = std::min<int64_t>(cores, int64_t(size_t(all) * tile >> 18) + 1);
    std::vector<std::thread> helpers;
    int64_t done = 0;
    try {
        for (int64_t i = 1; i < n; i++) {
            helpers.emplace_back(part, done, all * i / n);
            done = all * i / n;
        }
    } catch (const std::system_error &) {  // no more threads available: compute the rest here
    }
    part(done, all);
    for (auto &helper : helpers) helper.join();
}

namespace {

int64_t columns_of(const Tensor *x) { return x->ne[1] * x->ne[2] * x->ne[3]; }

struct Work {
    Activations *activations;  // of all columns
    int32_t *starts, *entries;  // for each expert, the columns that chose it, as token * used + slot
};

bool needs_copy(const Kind &kind, const Tensor *x) { return !kind.quantised && x->nb[0] != 4; }

size_t columns_size(const Kind &kind, const Tensor *x) {
    if (kind.quantised) return aligned(size_t(columns_of(x)) * size_t(x->ne[0] / 32) * sizeof(Activations));
    return needs_copy(kind, x) ? aligned(size_t(columns_of(x)) * size_t(x->ne[0]) * 4) : 0;
}

const char *column(const Tensor *x, int64_t c) {
    const int64_t i1 = c % x->ne[1], i2 = c / x->ne[1] % x->ne[2], i3 = c / x->ne[1] / x->ne[2];
    return static_cast<const char *>(x->data) + i1 * int64_t(x->nb[1]) + i2 * int64_t(x->nb[2]) + i3 * int64_t(x->nb[3]);
}

// Quantise this thread's share of the columns.
void prepare(const Path &path, const Kind &kind, const ComputeParams &p, const Tensor *x, char *to) {
    const int64_t n = columns_of(x), blocks = x->ne[0] / 32;
    if (kind.quantised) {
        const int64_t all = n * blocks, end = all * (p.ith + 1) / p.nth;
        for (int64_t at = all * p.ith / p.nth; at < end;) {
            const int64_t c = at / blocks, b = at % blocks, m = std::min(blocks - b, end - at);
            auto *out = reinterpret_cast<Activations *>(to) + at;
            const char *from = column(x, c) + b * 32 * int64_t(x->nb[0]);
            if (x->nb[0] == 4) path.quantise(reinterpret_cast<const float *>(from), out, m);
            else
                for (int64_t i = 0; i < m; i++) {
                    float all_32[32];
                    for (int j = 0; j < 32; j++) memcpy(all_32 + j, from + (i * 32 + j) * int64_t(x->nb[0]), 4);
                    path.quantise(all_32, out + i, 1);
                }
            at += m;
        }
    } else if (needs_copy(kind, x)) {
        for (int64_t c = p.ith; c < n; c += p.nth)
            for (int64_t i = 0; i < x->ne[0]; i++)
                memcpy(to + (c * x->ne[0] + i) * 4, column(x, c) + i * int64_t(x->nb[0]), 4);
    }
}

const void *prepared(const Kind &kind, const Tensor *x, const char *from, int64_t c) {
    if (kind.quantised) return reinterpret_cast<const Activations *>(from) + c * (x->ne[0] / 32);
    return needs_copy(kind, x) ? from + c * x->ne[0] * 4 : column(x, c);
}

}  // namespace

size_t mul_mat_work(const Kind &kind, const Tensor *op) {
    size_t size = columns_size(kind, op->src[1]) + 64;
    if (op->op == ggml::MUL_MAT_ID)
        size += aligned(size_t(op->src[0]->ne[2] + 1) * 4) + aligned(size_t(op->src[2]->ne[0] * op->src[2]->ne[1]) * 4);
    return size;
}

static void dense(const Kind &kind, const ComputeParams &p, Tensor *op, const char *columns) {
    const Tensor *w = op->src[0], *x = op->src[1];
    const int64_t planes = x->ne[2] * x->ne[3], shared = planes_of(w) == 1 ? planes : 1;  // planes that share weights
    const int64_t groups = planes / shared, n = x->ne[1] * shared;
    const int64_t tiles = tiles_of(kind, w), chunk = tiles_at_once(kind, w, groups, p.nth);
    const int64_t pieces = (tiles + chunk - 1) / chunk;
    const auto *data = static_cast<const char *>(w->data);
    const int64_t repeat_2 = x->ne[2] / w->ne[2], repeat_3 = x->ne[3] / w->ne[3];
    for (int64_t i = p.ith; i < groups * pieces; i = calls.chunk_add(p.threadpool, 1)) {
        const int64_t group = i / pieces, from = i % pieces * chunk, to = std::min(tiles, from + chunk);
        const int64_t plane = shared == 1 ? group / x->ne[2] / repeat_3 * w->ne[2] + group % x->ne[2] / repeat_2 : 0;
        const auto at = [&](int64_t c) { return group * n + c; };
        tiles_by_columns(
            kind, w, data + size_t(plane * tiles) * tile_size(kind, w), from, to, n,
            [&](int64_t c) { return prepared(kind, x, columns, at(c)); },
            [&](int64_t c) {
                const int64_t i1 = at(c) % x->ne[1], i2 = at(c) / x->ne[1] % x->ne[2], i3 = at(c) / x->ne[1] / x->ne[2];
                return reinterpret_cast<float *>(static_cast<char *>(op->data) + i1 * int64_t(op->nb[1]) +
                                                 i2 * int64_t(op->nb[2]) + i3 * int64_t(op->nb[3]));
            });
    }
}

static int32_t choice(const Tensor *ids, int64_t slot, int64_t token) {
    int32_t id;
    memcpy(&id, static_cast<const char *>(ids->data) + slot * int64_t(ids->nb[0]) + token * int64_t(ids->nb[1]), 4);
    return id;
}

// List the columns that chose each expert, in order.
static void sort_by_expert(const Tensor *op, Work &work) {
    const Tensor *ids = op->src[2];
    const int64_t experts = op->src[0]->ne[2], used = ids->ne[0], tokens = ids->ne[1];
    std::fill(work.starts, work.starts + experts + 1, 0);
    const auto each = [&](auto what) {
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t s = 0; s < used; s++)
                if (const int32_t e = choice(ids, s, t); e >= 0 && e < experts) what(e, int32_t(t * used + s));
    };
    each([&](int32_t e, int32_t) { work.starts[e + 1]++; });
    for (int64_t e = 0; e < experts; e++) work.starts[e + 1] += work.starts[e];
    std::vector<int32_t> next(work.starts, work.starts + experts);
    each([&](int32_t e, int32_t entry) { work.entries[next[size_t(e)]++] = entry; });
}

static void experts(const Kind &kind, const ComputeParams &p, Tensor *op, const char *columns, const Work &work) {
    const Tensor *w = op->src[0], *x = op->src[1];
    const int64_t used = op->src[2]->ne[0], tiles = tiles_of(kind, w);
    int64_t active = 0;
    for (int64_t e = 0; e < w->ne[2]; e++) active += work.starts[e + 1] > work.starts[e];
    const int64_t chunk = tiles_at_once(kind, w, active, p.nth), pieces = (tiles + chunk - 1) / chunk;
    int64_t next = p.ith, before = 0;
    for (int64_t e = 0; e < w->ne[2]; e++) {
        const int32_t *entries = work.entries + work.starts[e];
        const int64_t n = work.starts[e + 1] - work.starts[e];
        if (n == 0) continue;
        for (; next < before + pieces; next = calls.chunk_add(p.threadpool, 1)) {
            const int64_t from = (next - before) * chunk, to = std::min(tiles, from + chunk);
            tiles_by_columns(
                kind, w, static_cast<const char *>(w->data) + size_t(e * tiles) * tile_size(kind, w), from, to, n,
                [&](int64_t c) {
                    const int64_t slot = entries[c] % used, token = entries[c] / used;
                    return prepared(kind, x, columns, token * x->ne[1] + slot % x->ne[1]);
                },
                [&](int64_t c) {
                    const int64_t slot = entries[c] % used, token = entries[c] / used;
                    return reinterpret_cast<float *>(static_cast<char *>(op->data) + slot * int64_t(op->nb[1]) +
                                                     token * int64_t(op->nb[2]));
                });
        }
        before += pieces;
    }
}

void mul_mat(const Path &path, const Kind &kind, const ComputeParams &p, Tensor *op) {
    char *base = reinterpret_cast<char *>(aligned(reinterpret_cast<uintptr_t>(p.wdata)));
    char *rest = base + columns_size(kind, op->src[1]);
    Work work{};
    prepare(path, kind, p, op->src[1], base);
    if (op->op == ggml::MUL_MAT_ID) {
        work.starts = reinterpret_cast<int32_t *>(rest);
        work.entries = reinterpret_cast<int32_t *>(rest + aligned(size_t(op->src[0]->ne[2] + 1) * 4));
        if (p.ith == 0) sort_by_expert(op, work);
    }
    if (p.ith == 0) calls.chunk_set(p.threadpool, p.nth);
    calls.barrier(p.threadpool);
    if (op->op == ggml::MUL_MAT_ID) experts(kind, p, op, base, work);
    else dense(kind, p, op, base);
}

}  // namespace paceline
