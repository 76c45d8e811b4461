// A matrix product computed by ggml, with weights in one of its buffer types.
#pragma once
#include "calls.h"

namespace paceline {

ggml::BufferType **offered_types();  // ggml's extra buffer types, null-terminated; null if unknown

class GgmlProduct {
  public:
    // y [columns][rows] = x [columns][k] times w [rows][k].
    GgmlProduct(int type, int64_t k, int64_t rows, int64_t columns, ggml::BufferType *of_weights);
    ~GgmlProduct();
    GgmlProduct(const GgmlProduct &) = delete;

    bool is_possible() const;  // true if memory sufficed and the buffer type accepts the weights
    bool compute(const void *w, const float *x);
    bool compute_again();
    void read(float *y) const;
    size_t size_of_weights() const;

  private:
    ggml::BufferType *type_;
    ggml::Context *of_w_, *of_rest_;
    ggml::Tensor *w_, *x_, *y_;
    ggml::Graph *graph_;
    ggml::Buffer *weights_, *rest_;
    ggml::Backend *backend_;
};

// Seconds of a product of zeros on one thread, the fastest of several; negative if unsupported.
double product_seconds(int type, int columns, ggml::BufferType *of_weights);

}  // namespace paceline
