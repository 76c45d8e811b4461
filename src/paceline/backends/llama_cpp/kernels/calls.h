// ggml's functions, and what the three operations are given.
#pragma once
#include "ggml_abi.h"
#include "path.h"

namespace paceline {

extern ggml::Calls calls;
const char *find_calls(void *library);  // in it and what it loads; "" or what is missing

// mul_mat.cpp
const Kind *kind_of(const Path &, const ggml::Tensor *weights);  // null where there is no kernel for it
size_t laid_out_size(const Kind &, const ggml::Tensor *weights);
void lay_out(const Kind &, ggml::Tensor *weights, const void *data);
size_t mul_mat_work(const Kind &, const ggml::Tensor *op);
void mul_mat(const Path &, const Kind &, const ggml::ComputeParams &, ggml::Tensor *op);

// flash_attention.cpp
bool has_attention(const ggml::Tensor *op);
size_t attention_work(int threads, const ggml::Tensor *op);
void attention(const Path &, const ggml::ComputeParams &, ggml::Tensor *op);
void note_written(const ggml::Tensor *set_rows);

}  // namespace paceline
