// A product that ggml computes, with weights in one of its types of buffer.
#pragma once
#include "calls.h"

namespace paceline {

ggml::BufferType **offered_types();  // that ggml offers weights, up to a null; null where it does not say

class GgmlProduct {
  public:
    // y [columns][rows] = x [columns][k] times w [rows][k].
    GgmlProduct(int type, int64_t k, int64_t rows, int64_t columns, ggml::BufferType *of_weights);
    ~GgmlProduct();
    GgmlProduct(const GgmlProduct &) = delete;

    bool is_possible() const;  // there was memory, and the type of buffer takes such weights
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

// Seconds of a product of zeros on one thread, the quickest of some; negative where it is not possible.
double product_seconds(int type, int columns, ggml::BufferType *of_weights);

}  // namespace paceline
