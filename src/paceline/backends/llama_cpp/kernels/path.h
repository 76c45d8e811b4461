// The interface of a path: the kernels of one instruction set. All paths give the same bits: products are integers
// until a block of 32 is summed, and float operations have one fixed order, without a sum across lanes
// that depends on the vector width.
#pragma once
#include <cstddef>
#include <cstdint>

namespace paceline {

// 32 activations as int8: x = d * q. Sums of q are stored, since codes of weights have an offset.
struct alignas(16) Activations {
    float d, ds;   // the scale, and the scale times the sum
    int32_t sum;   // of all 32
    int16_t h[2];  // of each half
    int8_t q[32];
};
static_assert(sizeof(Activations) == 48, "");

constexpr int MOST = 8;  // maximum columns of one call

// out[c][0..rows) = a tile of weights times column c. blocks: number of blocks of the type in a row. columns: pointers
// to the Activations of a column, or to floats if the weights are floats.
using Product = void (*)(const uint8_t *tile, const void *const *columns, int64_t blocks, float *const *out, int rows);

struct Kind {
    int type;           // ggml_type
    bool quantised;     // columns are Activations
    int block;          // weights of one block
    size_t block_bytes; // bytes of one block of a row in ggml's layout
    int rows;           // rows of a tile
    size_t tile_bytes;  // bytes of one block of a tile
    int most;           // columns of one call
    Product product[MOST + 1];
    // Repack one tile. rows: pointers to the first block of each row; null stands for a row of zeros.
    void (*pack)(uint8_t *tile, const uint8_t *const *rows, int64_t blocks);
};

// K or V of one head: rows of cells.
struct Cells {
    const char *base;
    size_t stride;  // bytes from one cell to the next
    int type, width;
    void (*to_float)(const void *, float *, int64_t);  // ggml's conversion, for types without a kernel
};

constexpr int SLICE = 32;    // values of a head that are accumulated together
constexpr int ROUND_K = 16;  // queries and keys are padded to a multiple of it

struct Path {
    const char *name;
    const Kind *kinds;
    int n_kinds;
    void (*quantise)(const float *x, Activations *out, int64_t blocks);
    // scores[i * stride + c] = queries[i] times the key in cells[c], for c in [from, to).
    void (*scores)(const Cells &, const int32_t *cells, int64_t from, int64_t to, const float *queries, int n,
                   float *scores, int64_t stride);
    // In place: p = exp(x - max), of x = cap * tanh(score) + slope * mask; returns their sum, with the sink's.
    float (*softmax)(float *scores, const float *mask, int64_t n, float cap, float slope, const float *sink);
    // out[i * width + d] = sum over c, in order, of weights[i * stride + c] * value[cells[c]][d], for d in
    // [start, start + SLICE) below the width.
    void (*values)(const Cells &, const int32_t *cells, int64_t n_cells, const float *weights, int64_t stride, int n,
                   int start, float *out, int64_t out_stride);
    void (*halves)(const uint16_t *in, float *out, int64_t n);  // F16 to F32
};

extern const Path scalar_path, avx2_path, avxvnni_path, avx512_path, neon_path, i8mm_path;

}  // namespace paceline
