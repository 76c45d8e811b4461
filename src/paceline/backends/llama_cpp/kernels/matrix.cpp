// Matrices that belong to no model, such as those of draft heads: their rows are quantised and laid out in tiles once.
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "calls.h"
#include "tiles.h"

#define API extern "C" __attribute__((visibility("default")))

namespace paceline {

namespace {

constexpr size_t LEAST_SHARED = 512 << 10;  // bytes of tiles from which several threads pay

struct Matrix {
    const Path *path;
    const Kind *kind;
    ggml::Tensor shape;  // of the tiles: columns are padded to whole blocks of activations
    int64_t columns;
    std::vector<char> bytes;
};

// Tiles are taken from `next`, by all threads.
struct Work {
    const Matrix *matrix;
    const char *columns;  // Activations, or floats
    size_t stride;        // bytes of a column
    int64_t n, chunk;
    float *out;
    std::atomic<int64_t> next;
};

ggml::Tensor described(int type, int64_t columns, int64_t rows) {
    ggml::Tensor t{};
    t.type = type;
    t.ne[0] = columns, t.ne[1] = rows, t.ne[2] = t.ne[3] = 1;
    return t;
}

// Write a row of floats as blocks of the type. padded: a buffer with zeros behind the columns.
void write_row(const Kind &kind, const float *from, int64_t columns, std::vector<float> &padded, char *to) {
    memcpy(padded.data(), from, size_t(columns) * sizeof(float));
    const auto n = int64_t(padded.size());
    if (kind.type == ggml::F32) memcpy(to, padded.data(), padded.size() * sizeof(float));
    else calls.type_traits(kind.type)->from_float(padded.data(), to, n);
}

Matrix *made(const Path &path, int type, const float *from, int64_t rows, int64_t columns) {
    auto m = std::make_unique<Matrix>();
    m->path = &path, m->columns = columns;
    m->shape = described(type, columns, rows);
    for (int i = 0; i < path.n_kinds; i++)
        if (path.kinds[i].type == type) m->kind = &path.kinds[i];
    if (!m->kind || rows <= 0 || columns <= 0) return nullptr;
    const int64_t block = m->kind->block, padded = (columns + block - 1) / block * block;
    m->shape.ne[0] = padded;
    if (type != ggml::F32 && !calls.type_traits(type)->from_float) return nullptr;
    const size_t row = size_t(padded / block) * m->kind->block_bytes;
    std::vector<char> blocks(row * size_t(rows));
    std::vector<float> buffer(size_t(padded), 0.0f);
    for (int64_t r = 0; r < rows; r++)
        write_row(*m->kind, from + r * columns, columns, buffer, blocks.data() + size_t(r) * row);
    m->bytes.resize(repacked_size(*m->kind, &m->shape) + 64);
    m->shape.data = reinterpret_cast<void *>(aligned(reinterpret_cast<uintptr_t>(m->bytes.data())));
    repack(*m->kind, &m->shape, blocks.data());
    return m.release();
}

void quantise(const Matrix &m, const float *x, Activations *to) {
    const int64_t whole = m.columns / 32, rest = m.columns % 32;
    m.path->quantise(x, to, whole);
    for (int64_t b = whole; b < m.shape.ne[0] / 32; b++) {
        float padded[32] = {};
        if (b == whole) memcpy(padded, x + whole * 32, size_t(rest) * sizeof(float));
        m.path->quantise(padded, to + b, 1);
    }
}

void multiply_tiles(void *data) {
    auto &work = *static_cast<Work *>(data);
    const Matrix &m = *work.matrix;
    const int64_t tiles = tiles_of(*m.kind, &m.shape), rows = m.shape.ne[1];
    for (;;) {
        const int64_t from = work.next.fetch_add(1) * work.chunk;
        if (from >= tiles) return;
        tiles_by_columns(
            *m.kind, &m.shape, static_cast<const char *>(m.shape.data), from, std::min(tiles, from + work.chunk), work.n,
            [&](int64_t c) { return work.columns + size_t(c) * work.stride; },
            [&](int64_t c) { return work.out + c * rows; });
    }
}

void multiply(const Matrix &m, const float *x, int64_t n, float *out, int threads) {
    Work work{&m, reinterpret_cast<const char *>(x), size_t(m.columns) * sizeof(float), n, 0, out, {0}};
    std::unique_ptr<Activations[]> activations;
    if (m.kind->quantised) {
        const int64_t blocks = m.shape.ne[0] / 32;
        activations.reset(new Activations[size_t(n * blocks)]);
        for (int64_t c = 0; c < n; c++) quantise(m, x + c * m.columns, activations.get() + c * blocks);
        work.columns = reinterpret_cast<const char *>(activations.get());
        work.stride = size_t(blocks) * sizeof(Activations);
    }
    const bool is_shared = threads > 1 && calls.parallel && m.bytes.size() >= LEAST_SHARED;
    work.chunk = tiles_at_once(*m.kind, &m.shape, 1, is_shared ? threads : 1);
    // The number of ggml's threads: OpenMP ends surplus threads, and starting them again takes long.
    if (is_shared) calls.parallel(multiply_tiles, &work, unsigned(threads), 0);
    else multiply_tiles(&work);
}

}  // namespace
}  // namespace paceline

// Return a matrix of floats [rows][columns] in a type of ggml; null for a type that cannot be written, or without memory.
// path: one of paceline_kernels_paths(), "" for the best. paceline_kernels_enter comes first.
API void *paceline_matrix_new(const char *path, int type, const float *values, int64_t rows, int64_t columns) try {
    const auto *found = paceline::find_path(path);
    return found && paceline::calls.type_traits ? paceline::made(*found, type, values, rows, columns) : nullptr;
} catch (const std::bad_alloc &) {
    return nullptr;
}

API void paceline_matrix_free(void *matrix) { delete static_cast<paceline::Matrix *>(matrix); }

// Bytes of the matrix in tiles.
API uint64_t paceline_matrix_bytes(const void *matrix) { return static_cast<const paceline::Matrix *>(matrix)->bytes.size(); }

// out [n][rows] = x [n][columns] times the matrix transposed. threads: those of ggml, or 1. Returns 0 without memory.
API int paceline_matrix_multiply(const void *matrix, const float *x, int64_t n, float *out, int threads) try {
    paceline::multiply(*static_cast<const paceline::Matrix *>(matrix), x, n, out, threads);
    return 1;
} catch (const std::bad_alloc &) {
    return 0;
}
