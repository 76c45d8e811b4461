#pragma once
#include <string>

#include "ggml_abi.h"

// Repacked weights that two loads of one file share: a mixture of experts with fewer experts a token is a second
// load. The first load keeps its weights in its own buffers; a second refers to them, and its memory stays
// untouched.
namespace paceline {

// The file that this thread loads, with its size and time of change; "" shares nothing.
void set_loaded_file(const char *file);

// True if `t` now refers to weights that another load has repacked. Otherwise `t` is to be repacked.
bool refer_to_shared(ggml::Buffer *buffer, ggml::Tensor *t);

// Let later loads of the file refer to the repacked weights of `t`.
void share(ggml::Buffer *buffer, const ggml::Tensor *t);

// Let ggml free a buffer only after the last one that refers to it.
void watch_free(ggml::Buffer *buffer);

}  // namespace paceline
