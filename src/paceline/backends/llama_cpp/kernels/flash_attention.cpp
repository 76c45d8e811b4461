// FLASH_ATTN_EXT: attention over a KV cache whose cells may belong to many sequences, in any order.
//
// Rows that attend to mostly the same cells form a tile and share the reads. A tile has a list of the cells that any of
// its rows attends to, in the order in which they were written: a sequence's own text in order, whatever else is in
// the cache. So a row's numbers depend on its text alone (attention.h).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "calls.h"

namespace paceline {

using ggml::ComputeParams;
using ggml::Tensor;

constexpr int TILE_ROWS = 8, TILE_QUERIES = 64;
constexpr int64_t FEW_ROWS = 16;     // below this, heads and cells are divided among threads, too
constexpr int64_t CHUNK = 256;       // cells whose scores are one work item
constexpr int64_t MOST_ROWS = 1 << 24;  // of a cache
constexpr int WIDEST_HEAD = 1024;
constexpr int64_t SCORES = 1 << 21;  // maximum floats, unless a single row needs more

namespace {

int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Shapes of a call. A row is one token of one stream.
struct Call {
    const Tensor *op, *q, *k, *v, *mask, *sinks;
    const Tensor *cached_k;  // K in the cache: llama.cpp passes a copy in F16 of an F32 cache
    int64_t tokens, heads, kv_heads, cells, streams, rows;
    int group, tile_rows, key_width, value_width;
    float scale, max_bias, cap;

    explicit Call(const Tensor *o)
        : op(o), q(o->src[0]), k(o->src[1]), v(o->src[2]), mask(o->src[3]), sinks(o->src[4]),
          cached_k(k->op == ggml::CPY && k->src[0] ? k->src[0] : k), tokens(q->ne[1]),
          heads(q->ne[2]), kv_heads(k->ne[2]), cells(k->ne[1]), streams(q->ne[3]), rows(tokens * streams),
          group(int(heads / kv_heads)),
          tile_rows(int(std::max<int64_t>(1, std::min<int64_t>({TILE_ROWS, TILE_QUERIES / group, SCORES / (group * stride())})))),
          key_width(int(padded(k->ne[0], ROUND_K))), value_width(int(padded(v->ne[0], SLICE))) {
        float params[3];
        memcpy(params, o->op_params, sizeof params);
        scale = params[0], max_bias = params[1], cap = params[2];
        if (cap != 0.0f) scale /= cap;
    }
    const uint16_t *mask_of(int64_t row) const {
        return reinterpret_cast<const uint16_t *>(static_cast<const char *>(mask->data) +
                                                  row % tokens * int64_t(mask->nb[1]) +
                                                  row / tokens % mask->ne[3] * int64_t(mask->nb[3]));
    }
    Cells cells_of(const Tensor *x, int64_t stream, int64_t head) const {
        return {static_cast<const char *>(x->data) + stream * int64_t(x->nb[3]) + head * int64_t(x->nb[2]), x->nb[1],
                x->type, int(x->ne[0]), calls.type_traits(x->type)->to_float};
    }
    float slope(int64_t head) const {
        if (max_bias <= 0.0f) return 1.0f;
        const int64_t power = int64_t(1) << int(std::floor(std::log2(double(heads))));
        const float below = std::pow(2.0f, -max_bias / float(power)), above = std::pow(2.0f, -max_bias / 2.0f / float(power));
        return head < power ? std::pow(below, float(head + 1)) : std::pow(above, float(2 * (head - power) + 1));
    }
    const float *sink(int64_t head) const { return sinks ? static_cast<const float *>(sinks->data) + head : nullptr; }
    int64_t stride() const { return padded(cells, 16) + 16; }
};

// The last write of each cell of a cache, and the cells that a pass attends to: the same in every layer.
struct Cache {
    std::vector<int64_t> stamps, last;  // time of each cell's last write; the cells of the most recent write
    int64_t clock = 0;

    // Inputs of the lists below.
    bool known = false;  // for this pass: planning a pass resets it
    int64_t tokens = 0, streams = 0, cells = 0, first_cell = 0;
    int tile_rows = 0;
    const void *mask = nullptr;

    std::vector<uint64_t> visible;        // [rows][words]
    std::vector<int64_t> tiles;           // first row of each tile, and the end
    std::vector<std::vector<int32_t>> lists;  // cells of a tile, if there are few rows
    std::vector<std::vector<float>> biases;   // mask of a row over its tile's list; empty if it adds nothing
};

std::mutex lock;
std::map<const void *, std::unique_ptr<Cache>> caches;  // by the buffer of the cache

const Tensor *root_of(const Tensor *t) { return t->view_src ? t->view_src : t; }

Cache &cache_of(const Tensor *root) {
    const std::lock_guard<std::mutex> held(lock);
    auto &found = caches[root->buffer];
    if (!found) found = std::make_unique<Cache>();
    return *found;
}

int64_t words(int64_t cells) { return (cells + 63) / 64; }

constexpr uint16_t MINUS_INFINITY = 0xFC00;

void see(const Call &c, int64_t row, uint64_t *out) {
    const int64_t n = words(c.cells);
    if (!c.mask) {
        for (int64_t i = 0; i < n; i++) out[i] = i < c.cells / 64 ? ~uint64_t(0) : (uint64_t(1) << c.cells % 64) - 1;
        return;
    }
    const uint16_t *m = c.mask_of(row);
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        const int64_t end = std::min<int64_t>(64, c.cells - 64 * i);
        for (int64_t j = 0; j < end; j++) bits |= uint64_t(m[64 * i + j] != MINUS_INFINITY) << j;
        out[i] = bits;
    }
}

// Return whether two rows attend to enough of the same cells to share a tile.
bool alike(const uint64_t *a, const uint64_t *b, int64_t n) {
    int64_t both = 0, one = 0, other = 0;
    for (int64_t i = 0; i < n; i++) {
        both += __builtin_popcountll(a[i] & b[i]);
        one += __builtin_popcountll(a[i]);
        other += __builtin_popcountll(b[i]);
    }
    return 2 * both >= std::min(one, other);
}

void divide(const Call &c, Cache &x) {
    const int64_t n = words(c.cells);
    x.tiles.clear();
    for (int64_t row = 0, first = 0; row < c.rows; row++) {
        const bool begins = row == 0 || row - first >= c.tile_rows || row / c.tokens != first / c.tokens ||
                            !alike(&x.visible[size_t(first * n)], &x.visible[size_t(row * n)], n);
        if (begins) x.tiles.push_back(first = row);
    }
    x.tiles.push_back(c.rows);
}

// The cells that any row of a tile attends to, in write order.
void list(const Call &c, const Cache &x, int64_t tile, std::vector<int32_t> &out) {
    const int64_t n = words(c.cells), first = x.tiles[size_t(tile)], end = x.tiles[size_t(tile) + 1];
    out.clear();
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        for (int64_t row = first; row < end; row++) bits |= x.visible[size_t(row * n + i)];
        for (; bits; bits &= bits - 1) out.push_back(int32_t(64 * i + __builtin_ctzll(bits)));
    }
    const int64_t base = x.first_cell + first / c.tokens * int64_t(c.cached_k->nb[3] / c.cached_k->nb[1]);
    if (base + c.cells > int64_t(x.stamps.size())) return;
    const int64_t *stamp = x.stamps.data() + base;
    const auto earlier = [stamp](int32_t a, int32_t b) { return stamp[a] < stamp[b] || (stamp[a] == stamp[b] && a < b); };
    if (!std::is_sorted(out.begin(), out.end(), earlier)) std::sort(out.begin(), out.end(), earlier);
}

// Gather a row's mask over a list of cells; return whether it adds anything.
bool bias(const Path &path, const Call &c, int64_t row, const std::vector<int32_t> &cells, float *out) {
    if (!c.mask) return false;
    const uint16_t *m = c.mask_of(row);
    const int64_t n = int64_t(cells.size());
    bool any = false;
    for (int64_t i = 0; i < n;) {
        int64_t end = i + 1;
        while (end < n && cells[size_t(end)] == cells[size_t(end - 1)] + 1) end++;
        path.halves(m + cells[size_t(i)], out + i, end - i);
        i = end;
    }
    for (int64_t i = 0; i < n; i++) any |= out[i] != 0.0f;
    return any;
}

// Return whether all layers get the same mask: it, or its source, is not computed by a layer.
bool is_given(const Tensor *mask) {
    return !mask || mask->op == ggml::NONE || (mask->op == ggml::CPY && mask->src[0] && mask->src[0]->op == ggml::NONE);
}

// Compute the lists of this pass, once for all of its layers.
void look(const Path &path, const ComputeParams &p, const Call &c, Cache &x, bool few) {
    const Tensor *root = root_of(c.cached_k);
    const int64_t first_cell = (static_cast<const char *>(c.cached_k->data) - static_cast<const char *>(root->data)) / int64_t(c.cached_k->nb[1]);
    const int64_t n = words(c.cells);
    const void *mask = c.mask ? c.mask->data : nullptr;
    if (x.known && x.mask == mask && is_given(c.mask) && x.tokens == c.tokens && x.streams == c.streams &&
        x.cells == c.cells && x.first_cell == first_cell && x.tile_rows == c.tile_rows && (!few || !x.lists.empty()))
        return;
    calls.barrier(p.threadpool);  // all threads have noticed the new pass
    if (p.ith == 0) {
        x.visible.resize(size_t(c.rows * n));
        x.known = true, x.mask = mask, x.tokens = c.tokens, x.streams = c.streams, x.cells = c.cells;
        x.first_cell = first_cell, x.tile_rows = c.tile_rows;
    }
    calls.barrier(p.threadpool);
    for (int64_t row = p.ith; row < c.rows; row += p.nth) see(c, row, &x.visible[size_t(row * n)]);
    calls.barrier(p.threadpool);
    if (p.ith == 0) {
        divide(c, x);
        x.lists.resize(few ? x.tiles.size() - 1 : 0);
        x.biases.resize(few ? size_t(c.rows) : 0);
    }
    calls.barrier(p.threadpool);
    for (int64_t tile = p.ith; tile < int64_t(x.lists.size()); tile += p.nth) {
        auto &cells = x.lists[size_t(tile)];
        list(c, x, tile, cells);
        for (int64_t row = x.tiles[size_t(tile)]; row < x.tiles[size_t(tile) + 1]; row++) {
            auto &of_row = x.biases[size_t(row)];
            of_row.resize(size_t(padded(int64_t(cells.size()), 16)));
            if (!bias(path, c, row, cells, of_row.data())) of_row.clear();
        }
    }
    calls.barrier(p.threadpool);
}

// queries[i]: the scaled and padded queries of a tile's rows and heads that share keys.
void gather_queries(const Call &c, int64_t first, int64_t end, int64_t kv_head, float *out) {
    for (int64_t row = first; row < end; row++)
        for (int h = 0; h < c.group; h++, out += c.key_width) {
            const auto *from = reinterpret_cast<const float *>(
                static_cast<const char *>(c.q->data) + row % c.tokens * int64_t(c.q->nb[1]) +
                (kv_head * c.group + h) * int64_t(c.q->nb[2]) + row / c.tokens * int64_t(c.q->nb[3]));
            for (int64_t d = 0; d < c.q->ne[0]; d++) out[d] = from[d] * c.scale;
            for (int64_t d = c.q->ne[0]; d < c.key_width; d++) out[d] = 0.0f;
        }
}

// Write columns [start, start + SLICE) of the result of a row and head.
void give(const Call &c, int64_t row, int64_t head, int start, const float *sums, float total) {
    auto *to = reinterpret_cast<float *>(static_cast<char *>(c.op->data) + head * int64_t(c.op->nb[1]) +
                                         row % c.tokens * int64_t(c.op->nb[2]) + row / c.tokens * int64_t(c.op->nb[3]));
    const float f = total != 0.0f ? 1.0f / total : 0.0f;
    const int64_t end = std::min<int64_t>(c.v->ne[0], start + SLICE);
    for (int64_t d = start; d < end; d++) to[d] = sums[d] * f;
}

// Many tiles: each head of a tile is a work item.
void by_tiles(const Path &path, const ComputeParams &p, const Call &c, const Cache &x, float *buffer) {
    if (p.ith == 0) calls.chunk_set(p.threadpool, p.nth);
    calls.barrier(p.threadpool);
    const int most = c.tile_rows * c.group;
    const int64_t stride = c.stride();
    float *queries = buffer, *scores = queries + most * c.key_width, *out = scores + most * stride;
    float *of_row = out + most * c.value_width;
    thread_local std::vector<int32_t> listed;
    int64_t of = -1;
    const int64_t n = (int64_t(x.tiles.size()) - 1) * c.kv_heads;
    for (int64_t i = p.ith; i < n; i = calls.chunk_add(p.threadpool, 1)) {
        const int64_t tile = i / c.kv_heads, kv_head = i % c.kv_heads;
        const int64_t first = x.tiles[size_t(tile)], end = x.tiles[size_t(tile) + 1];
        if (x.lists.empty() && tile != of) { list(c, x, tile, listed); of = tile; }
        const auto &cells = x.lists.empty() ? listed : x.lists[size_t(tile)];
        const int64_t m = int64_t(cells.size());
        const int queries_n = int(end - first) * c.group;
        const Cells k = c.cells_of(c.k, first / c.tokens, kv_head), v = c.cells_of(c.v, first / c.tokens, kv_head);
        float totals[TILE_ROWS * TILE_QUERIES];
        gather_queries(c, first, end, kv_head, queries);
        path.scores(k, cells.data(), 0, m, queries, queries_n, scores, stride);
        for (int64_t row = first; row < end; row++) {
            const float *adds = nullptr;
            if (!x.lists.empty()) adds = x.biases[size_t(row)].empty() ? nullptr : x.biases[size_t(row)].data();
            else if (bias(path, c, row, cells, of_row)) adds = of_row;
            for (int h = 0; h < c.group; h++) {
                const int64_t q = (row - first) * c.group + h, head = kv_head * c.group + h;
                totals[q] = path.softmax(scores + q * stride, adds, m, c.cap, c.slope(head), c.sink(head));
            }
        }
        for (int start = 0; start < c.v->ne[0]; start += SLICE)
            path.values(v, cells.data(), m, scores, stride, queries_n, start, out, c.value_width);
        for (int64_t q = 0; q < queries_n; q++)
            for (int start = 0; start < c.v->ne[0]; start += SLICE)
                give(c, first + q / c.group, kv_head * c.group + q % c.group, start, out + q * c.value_width, totals[q]);
    }
}

// Few rows: ranges of cells and slices of heads are work items, too.
void by_cells(const Path &path, const ComputeParams &p, const Call &c, const Cache &x, float *buffer) {
    const int64_t stride = c.stride(), n_tiles = int64_t(x.lists.size()), all = c.rows * c.heads;
    float *queries = buffer, *scores = queries + all * c.key_width, *out = scores + all * stride;
    float *totals = out + all * c.value_width;
    // Offset of the queries of a tile's head: after all heads of earlier rows, then earlier heads.
    const auto place = [&](int64_t tile, int64_t kv_head) {
        const int64_t first = x.tiles[size_t(tile)], n = x.tiles[size_t(tile) + 1] - first;
        return first * c.heads + kv_head * n * c.group;
    };
    for (int64_t i = p.ith; i < n_tiles * c.kv_heads; i += p.nth)
        gather_queries(c, x.tiles[size_t(i / c.kv_heads)], x.tiles[size_t(i / c.kv_heads) + 1], i % c.kv_heads,
                       queries + place(i / c.kv_heads, i % c.kv_heads) * c.key_width);
    calls.barrier(p.threadpool);
    int64_t turn = 0;
    const auto mine = [&] { return turn++ % p.nth == p.ith; };
    for (int64_t tile = 0; tile < n_tiles; tile++) {
        const auto &cells = x.lists[size_t(tile)];
        const int64_t first = x.tiles[size_t(tile)], rows = x.tiles[size_t(tile) + 1] - first, m = int64_t(cells.size());
        for (int64_t h = 0; h < c.kv_heads; h++) {
            const int64_t at = place(tile, h);
            for (int64_t from = 0; from < m; from += CHUNK)
                if (mine())
                    path.scores(c.cells_of(c.k, first / c.tokens, h), cells.data(), from, std::min(m, from + CHUNK),
                                queries + at * c.key_width, int(rows) * c.group, scores + at * stride, stride);
        }
    }
    calls.barrier(p.threadpool);
    for (int64_t tile = 0; tile < n_tiles; tile++) {
        const int64_t first = x.tiles[size_t(tile)], rows = x.tiles[size_t(tile) + 1] - first;
        for (int64_t h = 0; h < c.kv_heads; h++)
            for (int64_t i = 0; i < rows * c.group; i++)
                if (mine()) {
                    const int64_t q = place(tile, h) + i, head = h * c.group + i % c.group;
                    const auto &of_row = x.biases[size_t(first + i / c.group)];
                    totals[q] = path.softmax(scores + q * stride, of_row.empty() ? nullptr : of_row.data(),
                                             int64_t(x.lists[size_t(tile)].size()), c.cap, c.slope(head), c.sink(head));
                }
    }
    calls.barrier(p.threadpool);
    for (int64_t tile = 0; tile < n_tiles; tile++) {
        const auto &cells = x.lists[size_t(tile)];
        const int64_t first = x.tiles[size_t(tile)], rows = x.tiles[size_t(tile) + 1] - first;
        for (int64_t h = 0; h < c.kv_heads; h++)
            for (int start = 0; start < c.v->ne[0]; start += SLICE)
                if (mine()) {
                    const int64_t at = place(tile, h), n = rows * c.group;
                    path.values(c.cells_of(c.v, first / c.tokens, h), cells.data(), int64_t(cells.size()),
                                scores + at * stride, stride, int(n), start, out + at * c.value_width, c.value_width);
                    for (int64_t i = 0; i < n; i++)
                        give(c, first + i / c.group, h * c.group + i % c.group, start, out + (at + i) * c.value_width, totals[at + i]);
                }
    }
}

bool few_rows(const Call &c) { return c.rows <= FEW_ROWS && c.rows * c.heads * c.stride() <= 2 * SCORES; }

int64_t floats_of_tile(const Call &c) {
    const int64_t most = int64_t(c.tile_rows) * c.group;
    return padded(most * (c.key_width + c.stride() + c.value_width) + c.stride(), 16);
}

bool readable(const Tensor *x) {
    const auto *traits = calls.type_traits(x->type);
    const bool own = x->type == ggml::F32 || x->type == ggml::F16 || x->type == ggml::BF16;
    return x->ne[0] <= WIDEST_HEAD && (own || (traits->to_float && x->ne[0] % traits->blck_size == 0)) &&
           x->nb[0] == traits->type_size;
}

}  // namespace

bool has_attention(const Tensor *op) {
    const Tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *m = op->src[3], *s = op->src[4];
    return q->type == ggml::F32 && q->nb[0] == 4 && op->nb[0] == 4 && readable(k) && readable(v) &&
           k->ne[2] == v->ne[2] && k->ne[2] > 0 && q->ne[2] % k->ne[2] == 0 && q->ne[2] / k->ne[2] <= TILE_QUERIES * TILE_ROWS &&
           k->ne[1] == v->ne[1] && k->ne[3] == q->ne[3] && v->ne[3] == q->ne[3] &&
           (!m || (m->type == ggml::F16 && m->nb[0] == 2 && m->ne[2] == 1 && m->ne[0] >= k->ne[1])) &&
           (!s || s->type == ggml::F32);
}

size_t attention_work(int threads, const Tensor *op) {
    const Call c(op);
    cache_of(root_of(c.cached_k)).known = false;
    const int64_t tiles = floats_of_tile(c) * threads;
    const int64_t few = c.rows * c.heads * (c.key_width + c.stride() + c.value_width + 1);
    return size_t(few_rows(c) ? std::max(tiles, few) : tiles) * 4 + 64;
}

void attention(const Path &path, const ComputeParams &p, Tensor *op) {
    const Call c(op);
    Cache &x = cache_of(root_of(c.cached_k));
    const bool few = few_rows(c);
    look(path, p, c, x, few);
    auto *buffer = reinterpret_cast<float *>((reinterpret_cast<uintptr_t>(p.wdata) + 63) / 64 * 64);
    // A row gets the same bits from both.
    if (few && (int64_t(x.tiles.size()) - 1) * c.kv_heads < 3 * p.nth) by_cells(path, p, c, x, buffer);
    else by_tiles(path, p, c, x, buffer + p.ith * floats_of_tile(c));
}

void note_written(const Tensor *op) {
    const Tensor *root = root_of(op), *ids = op->src[1];
    if (op->ne[0] <= 1 || op->nb[1] == 0 || (ids->type != ggml::I64 && ids->type != ggml::I32)) return;
    const int64_t rows = root->ne[1] * root->ne[2] * root->ne[3];
    if (rows > MOST_ROWS || ids->ne[1] != 1 || ids->ne[2] != 1) return;
    Cache &x = cache_of(root);
    const int64_t base = (static_cast<const char *>(op->data) - static_cast<const char *>(root->data)) / int64_t(op->nb[1]);
    std::vector<int64_t> written(size_t(ids->ne[0]));
    for (int64_t i = 0; i < ids->ne[0]; i++) {
        const char *at = static_cast<const char *>(ids->data) + i * int64_t(ids->nb[0]);
        int32_t narrow;
        memcpy(&narrow, at, 4);
        written[size_t(i)] = base + narrow;
        if (ids->type == ggml::I64) { memcpy(&written[size_t(i)], at, 8); written[size_t(i)] += base; }
    }
    if (int64_t(x.stamps.size()) != rows) { x.stamps.assign(size_t(rows), 0); x.last.clear(); }
    if (written == x.last) return;  // another layer, or repeated: the cells are unchanged
    for (int64_t cell : written)
        if (cell >= 0 && cell < rows) x.stamps[size_t(cell)] = ++x.clock;
    x.last.swap(written);
}

}  // namespace paceline
