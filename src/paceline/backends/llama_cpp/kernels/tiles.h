// Matrices in tiles: their size, and products of tiles with columns. A matrix is described by a Tensor: its type,
// its shape ne, and data that repack() has laid out.
#pragma once
#include <algorithm>

#include "ggml_abi.h"
#include "path.h"

namespace paceline {

constexpr size_t NEAR = 48 << 10;  // bytes of tiles that stay in cache while all columns pass
constexpr int PARTS = 4;           // minimum work items per thread, for load balance

inline size_t aligned(size_t n) { return (n + 63) / 64 * 64; }

inline int64_t tiles_of(const Kind &kind, const ggml::Tensor *w) { return (w->ne[1] + kind.rows - 1) / kind.rows; }

inline size_t tile_size(const Kind &kind, const ggml::Tensor *w) { return size_t(w->ne[0] / kind.block) * kind.tile_bytes; }

// Multiply some tiles with some columns, as many at a time as a kernel takes, in even parts. of(i), to(i): the input of
// the i-th column and the start of its result.
template <class Of, class To>
void tiles_by_columns(const Kind &kind, const ggml::Tensor *w, const char *tiles, int64_t from, int64_t to, int64_t n,
                      Of of, To out) {
    const int64_t blocks = w->ne[0] / kind.block, parts = (n + kind.most - 1) / kind.most;
    const size_t size = tile_size(kind, w);
    for (int64_t part = 0; part < parts; part++) {
        const int64_t first = n * part / parts, m = n * (part + 1) / parts - first;
        const void *columns[MOST];
        float *results[MOST], *outs[MOST];
        for (int64_t i = 0; i < m; i++) { columns[i] = of(first + i); results[i] = out(first + i); }
        for (int64_t t = from; t < to; t++) {
            for (int64_t i = 0; i < m; i++) outs[i] = results[i] + t * kind.rows;
            const int64_t rows = std::min<int64_t>(kind.rows, w->ne[1] - t * kind.rows);
            kind.product[m](reinterpret_cast<const uint8_t *>(tiles) + size_t(t) * size, columns, blocks, outs, int(rows));
        }
    }
}

// The tiles of one piece of work, for `pieces_of_others` matrices and `nth` threads.
inline int64_t tiles_at_once(const Kind &kind, const ggml::Tensor *w, int64_t pieces_of_others, int nth) {
    const int64_t tiles = tiles_of(kind, w), near = int64_t(NEAR / tile_size(kind, w));
    const int64_t fair = tiles * pieces_of_others / (int64_t(nth) * PARTS);
    return std::max<int64_t>(1, std::min(near, fair));
}

}  // namespace paceline
