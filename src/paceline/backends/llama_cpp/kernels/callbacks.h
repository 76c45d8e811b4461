// What ggml's evaluation callbacks read tensors with. Callbacks need no kernels.
#pragma once
#include "ggml_abi.h"

#define API extern "C" __attribute__((visibility("default")))

namespace paceline {

struct CallbackCalls {
    void (*get_rows)(const ggml::Tensor *, void *, size_t offset, size_t size, size_t n, size_t stride, size_t stride_to);
    const ggml::TypeTraits *(*type_traits)(int);
};

extern CallbackCalls callback_calls;

}  // namespace paceline
