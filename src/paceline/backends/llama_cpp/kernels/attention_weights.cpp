// How much a pass of one token attends to each cell, from the attention nodes of its graph.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "callbacks.h"

namespace paceline {
namespace {

using ggml::Tensor;
using Floats = std::vector<float>;

// Shared with attention_weights.py. most: for each of the first n cells the largest weight of all heads and layers
// so far, null while nothing is wanted. layers: layers read. strange: layers that cannot be read, with position
// biases (ALiBi) or several queries.
struct Weights {
    float *most;
    int64_t n;
    int32_t layers, strange;
};

bool is_fused(const Tensor *t) { return t->op == ggml::FLASH_ATTN_EXT; }
bool is_softmax(const Tensor *t) { return !strncmp(t->name, "kq_soft_max", 11); }

// The rows of a part of a tensor [width, n, parts, 1], as floats.
bool read(const Tensor *t, int64_t part, Floats &out) {
    const ggml::TypeTraits *type = callback_calls.type_traits(t->type);
    const size_t row = type->type_size * size_t(t->ne[0] / type->blck_size);
    const int64_t n = t->ne[0] * t->ne[1];
    std::vector<char> raw(row * size_t(t->ne[1]));
    callback_calls.get_rows(t, raw.data(), size_t(part) * t->nb[2], row, size_t(t->ne[1]), t->nb[1], row);
    out.resize(size_t(n));
    if (t->type == ggml::F32) memcpy(out.data(), raw.data(), raw.size());
    else if (type->to_float) type->to_float(raw.data(), out.data(), n);
    else return false;
    return true;
}

float dot(const float *a, const float *b, int64_t n) {
    float sums[16] = {};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int lane = 0; lane < 16; lane++) sums[lane] += a[i + lane] * b[i + lane];
    for (; i < n; i++) sums[0] += a[i] * b[i];
    float sum = 0;
    for (float lane : sums) sum += lane;
    return sum;
}

void note(Weights &w, const Floats &weights) {
    for (int64_t i = 0; i < w.n; i++) w.most[i] = std::max(w.most[i], weights[size_t(i)]);
}

// scores [cells] -> softmax.
void softmax(Floats &scores) {
    const float top = *std::max_element(scores.begin(), scores.end());
    float sum = 0;
    for (float &score : scores) sum += score = std::exp(score - top);
    for (float &score : scores) score /= sum;
}

bool read_fused(Weights &w, const Tensor *t) {
    const Tensor *q = t->src[0], *k = t->src[1], *mask = t->src[3];
    float params[3];  // scale, largest position bias, soft cap of the scores
    memcpy(params, t->op_params, sizeof params);
    const int64_t width = k->ne[0], cells = k->ne[1], heads = q->ne[2];
    if (q->ne[1] != 1 || q->ne[3] != 1 || params[1] != 0 || !mask || cells < w.n) return false;
    Floats hidden, keys, queries, scores;
    if (!read(mask, 0, hidden)) return false;
    int64_t loaded = -1;
    for (int64_t head = 0; head < heads; head++) {
        const int64_t group = head * k->ne[2] / heads;
        if (group != loaded && !read(k, group, keys)) return false;
        loaded = group;
        if (!read(q, head, queries)) return false;
        scores.resize(size_t(cells));
        for (int64_t cell = 0; cell < cells; cell++) {
            float score = dot(queries.data(), keys.data() + cell * width, width) * params[0];
            if (params[2] != 0) score = params[2] * std::tanh(score / params[2]);
            scores[size_t(cell)] = hidden[size_t(cell)] == 0 ? score : -INFINITY;
        }
        softmax(scores);
        note(w, scores);
    }
    return true;
}

bool read_softmax(Weights &w, const Tensor *t) {
    if (t->type != ggml::F32 || t->ne[0] < w.n || t->ne[1] != 1 || t->ne[3] != 1) return false;
    Floats weights;
    for (int64_t head = 0; head < t->ne[2]; head++) {
        if (!read(t, head, weights)) return false;
        note(w, weights);
    }
    return true;
}

}  // namespace
}  // namespace paceline

// ggml's evaluation callback; see paceline_hidden_states_capture.
API bool paceline_attention_weights_capture(paceline::Tensor *t, bool ask, void *wanted) {
    using namespace paceline;
    auto &w = *static_cast<Weights *>(wanted);
    if (!w.most) return !ask;
    if (ask) return is_fused(t) || is_softmax(t);
    const bool done = is_fused(t) ? read_fused(w, t) : read_softmax(w, t);
    (done ? w.layers : w.strange)++;
    return true;
}
