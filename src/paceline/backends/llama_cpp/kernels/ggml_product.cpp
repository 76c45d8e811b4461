#include "ggml_product.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace paceline {

using ggml::BufferType;

BufferType **offered_types() {
    using Types = BufferType **(*)(ggml::Device *);
    void *reg = calls.cpu_reg();
    const auto offered = reinterpret_cast<Types>(calls.proc_address(reg, "ggml_backend_dev_get_extra_bufts"));
    return offered ? offered(calls.reg_device(reg, 0)) : nullptr;
}

GgmlProduct::GgmlProduct(int type, int64_t k, int64_t rows, int64_t columns, BufferType *of_weights)
    : type_(of_weights),
      of_w_(calls.init({calls.tensor_overhead() * 2, nullptr, true})),
      of_rest_(calls.init({calls.tensor_overhead() * 8 + (1 << 20), nullptr, true})),
      w_(calls.new_tensor_2d(of_w_, type, k, rows)),
      x_(calls.new_tensor_2d(of_rest_, ggml::F32, k, columns)),
      y_(calls.mul_mat(of_rest_, w_, x_)),
      graph_(calls.new_graph(of_rest_)),
      weights_(calls.alloc_tensors(of_w_, of_weights)),
      rest_(nullptr),
      backend_(nullptr) {
    calls.expand(graph_, y_);
    rest_ = calls.alloc_tensors(of_rest_, calls.cpu_buffer_type());
    backend_ = calls.cpu_init();
    if (backend_) calls.set_threads(backend_, 1);
}

GgmlProduct::~GgmlProduct() {
    if (backend_) calls.free_backend(backend_);
    if (weights_) calls.free_buffer(weights_);
    if (rest_) calls.free_buffer(rest_);
    calls.free_context(of_w_);
    calls.free_context(of_rest_);
}

bool GgmlProduct::is_possible() const {
    auto *takes = static_cast<ggml::ExtraBufferType *>(type_->context);
    return weights_ && rest_ && backend_ && takes->supports_op(type_->device, y_);
}

bool GgmlProduct::compute(const void *w, const float *x) {
    calls.tensor_set(w_, w, 0, size_of_weights());
    calls.tensor_set(x_, x, 0, calls.nbytes(x_));
    return compute_again();
}

bool GgmlProduct::compute_again() { return calls.compute(backend_, graph_) == 0; }

void GgmlProduct::read(float *y) const { calls.tensor_get(y_, y, 0, calls.nbytes(y_)); }

size_t GgmlProduct::size_of_weights() const { return calls.nbytes(w_); }

double product_seconds(int type, int columns, BufferType *of_weights) {
    constexpr int K = 2048, ROWS = 4096, TIMES = 4;
    using Clock = std::chrono::steady_clock;
    GgmlProduct product(type, K, ROWS, columns, of_weights);
    if (!product.is_possible()) return -1;
    const std::vector<char> w(product.size_of_weights());
    const std::vector<float> x(size_t(K) * size_t(columns));
    if (!product.compute(w.data(), x.data())) return -1;
    double best = 1e9;
    for (int i = 0; i < TIMES; i++) {
        const auto began = Clock::now();
        if (!product.compute_again()) return -1;
        best = std::min(best, std::chrono::duration<double>(Clock::now() - began).count());
    }
    return best;
}

}  // namespace paceline
