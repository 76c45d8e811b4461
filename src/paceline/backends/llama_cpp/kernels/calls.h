// ggml's functions, and what the sources use of one another.
#pragma once
#include "ggml_abi.h"
#include "path.h"

namespace paceline {

extern ggml::Calls calls;
const char *find_calls(void *library);  // in a library and its dependencies; returns "" or the missing name

const Path *find_path(const char *name);  // of this processor, "" for the best; null if it has none (entry.cpp)

// mul_mat.cpp
const Kind *kind_of(const Path &, const ggml::Tensor *weights);  // null if there is no kernel for the type
size_t repacked_size(const Kind &, const ggml::Tensor *weights);
void repack(const Kind &, ggml::Tensor *weights, const void *data);
size_t mul_mat_work(const Kind &, const ggml::Tensor *op);
void mul_mat(const Path &, const Kind &, const ggml::ComputeParams &, ggml::Tensor *op);

// flash_attention.cpp
bool has_attention(const ggml::Tensor *op);
size_t attention_work(int threads, const ggml::Tensor *op);
void attention(const Path &, const ggml::ComputeParams &, ggml::Tensor *op);
void note_written(const ggml::Tensor *set_rows);

}  // namespace paceline
