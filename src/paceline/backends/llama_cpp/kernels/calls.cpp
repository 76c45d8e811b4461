#include "calls.h"

#include <dlfcn.h>

#include <type_traits>

namespace paceline {

ggml::Calls calls;

const char *find_calls(void *library) {
    const auto find = [library](auto &to, const char *name) {
        to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(dlsym(library, name));
        return to != nullptr;
    };
    auto &c = calls;
    const bool all =
        find(c.version, "ggml_version") && find(c.op_name, "ggml_op_name") &&
        find(c.tensor_overhead, "ggml_tensor_overhead") &&
        find(c.extra_buffer_types, "_Z39ggml_backend_cpu_get_extra_buffer_typesv") &&
        find(c.cpu_buffer_type, "ggml_backend_cpu_buffer_type") &&
        find(c.alloc_buffer, "ggml_backend_buft_alloc_buffer") && find(c.is_host, "ggml_backend_buft_is_host") &&
        find(c.cpu_reg, "ggml_backend_cpu_reg") && find(c.reg_device, "ggml_backend_reg_dev_get") &&
        find(c.proc_address, "ggml_backend_reg_get_proc_address") &&
        find(c.barrier, "ggml_barrier") && find(c.chunk_set, "ggml_threadpool_chunk_set") &&
        find(c.chunk_add, "ggml_threadpool_chunk_add") && find(c.type_traits, "ggml_get_type_traits") &&
        find(c.init, "ggml_init") && find(c.free_context, "ggml_free") &&
        find(c.new_tensor_2d, "ggml_new_tensor_2d") && find(c.mul_mat, "ggml_mul_mat") &&
        find(c.new_graph, "ggml_new_graph") && find(c.expand, "ggml_build_forward_expand") &&
        find(c.alloc_tensors, "ggml_backend_alloc_ctx_tensors_from_buft") &&
        find(c.tensor_set, "ggml_backend_tensor_set") && find(c.tensor_get, "ggml_backend_tensor_get") &&
        find(c.nbytes, "ggml_nbytes") && find(c.set_threads, "ggml_backend_cpu_set_n_threads") &&
        find(c.free_buffer, "ggml_backend_buffer_free") && find(c.cpu_init, "ggml_backend_cpu_init") &&
        find(c.compute, "ggml_backend_graph_compute") && find(c.free_backend, "ggml_backend_free");
    find(c.parallel, "GOMP_parallel");
    return all ? "" : "llama.cpp's libraries do not show the functions that kernels enter by";
}

}  // namespace paceline
