// The hidden states of chosen layers, copied from a pass by ggml's evaluation callback. This needs no kernels.
#include <cstdlib>
#include <cstring>

#include "callbacks.h"

namespace paceline {
namespace {

using ggml::Tensor;

// Shared with hidden_states.py. out: [rows][n][width], null while nothing is wanted. layers: n numbers, ascending.
// last: the number of layers, whose "input" is the final norm's output. copied: rows of each layer so far.
// stop: the layer before which a pass ends, 0 for none.
struct Capture {
    float *out;
    int64_t rows;
    int32_t width, n, last, stop;
    const int32_t *layers;
    int64_t *copied;
};

constexpr const char *EMBEDDINGS = "embd";
// Names of embeddings that a model scales or normalises before its first layer.
constexpr const char *SCALED_EMBEDDINGS[] = {"inp_scaled", "inp_embd_scaled", "inp_norm", "inp_norm-0", "inpL"};

bool is_scaled(const char *name) {
    for (const char *known : SCALED_EMBEDDINGS)
        if (!strcmp(name, known)) return true;
    return false;
}

// The layer whose input has this name, or -1. A pass has a thousand names: most are told by their first letter.
int layer_of(const char *name, int last) {
    switch (*name) {
        case 'l': {
            if (strncmp(name, "l_out-", 6)) return -1;
            char *end;
            const long next = strtol(name + 6, &end, 10) + 1;
            return *end == 0 && next > 0 && next < last ? int(next) : -1;
        }
        case 'r': return strcmp(name, "result_norm") ? -1 : last;
        case 'e': return strcmp(name, EMBEDDINGS) ? -1 : 0;
        case 'i': return is_scaled(name) ? 0 : -1;
        default: return -1;
    }
}

int column_of(const Capture &c, const char *name) {
    const int layer = layer_of(name, c.last);
    if (layer >= 0)
        for (int i = 0; i < c.n; i++)
            if (c.layers[i] == layer) return i;
    return -1;
}

// Copy the rows of a part of the batch behind those of earlier parts. Tensors of another shape are left out,
// which shows in `copied`.
void copy_rows(Capture &c, const Tensor *t, int column) {
    const size_t row = size_t(c.width) * sizeof(float), stride = row * size_t(c.n);
    if (t->type != ggml::F32 || t->ne[0] != c.width || t->ne[2] * t->ne[3] != 1 || t->nb[0] != sizeof(float)) return;
    int64_t &copied = c.copied[column];
    const int64_t n = t->ne[1], at = is_scaled(t->name) ? copied - n : copied;  // scaled ones replace the raw ones
    copied = at + n;
    if (at < 0 || copied > c.rows || n == 0) return;
    callback_calls.get_rows(t, c.out + (at * c.n + column) * c.width, 0, row, size_t(n), t->nb[1], stride);
}

}  // namespace
}  // namespace paceline

// ggml's evaluation callback. ask: whether the tensor is wanted; it is then passed again once it is computed.
API bool paceline_hidden_states_capture(paceline::Tensor *t, bool ask, void *capture) {
    auto &c = *static_cast<paceline::Capture *>(capture);
    if (!c.out) return !ask;
    const int column = paceline::column_of(c, t->name);
    if (ask) return column >= 0;
    if (column < 0) return true;
    paceline::copy_rows(c, t, column);
    return c.stop == 0 || c.layers[column] != c.stop;  // false: the rest of the graph is not computed
}
