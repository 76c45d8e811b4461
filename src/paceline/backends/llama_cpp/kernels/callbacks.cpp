#include "callbacks.h"

#include <dlfcn.h>

#include <cstring>

paceline::CallbackCalls paceline::callback_calls;

// Look up ggml's functions. library: llama.cpp's handle from dlopen. Returns "" or the reason why it cannot be used.
API const char *paceline_callbacks_enter(void *library) {
    using namespace paceline;
    const auto version = reinterpret_cast<const char *(*)()>(dlsym(library, "ggml_version"));
    const auto overhead = reinterpret_cast<size_t (*)()>(dlsym(library, "ggml_tensor_overhead"));
    CallbackCalls &c = callback_calls;
    c.get_rows = reinterpret_cast<decltype(c.get_rows)>(dlsym(library, "ggml_backend_tensor_get_2d"));
    c.type_traits = reinterpret_cast<decltype(c.type_traits)>(dlsym(library, "ggml_get_type_traits"));
    if (!version || !overhead || !c.get_rows || !c.type_traits)
        return "llama.cpp's libraries do not show the functions that copy tensors";
    if (strcmp(version(), ggml::VERSION)) return "llama.cpp is another version than the library was written for";
    return overhead() == sizeof(ggml::Tensor) + ggml::OBJECT_SIZE ? "" : "llama.cpp's tensors have another size here";
}
