// The kernels enter ggml's CPU backend as one more extra buffer type. ggml offers it every weight first and
// queries its traits first for every operation.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "calls.h"
#include "ggml_product.h"
#include "sharing.h"

#define API extern "C" __attribute__((visibility("default")))

namespace paceline {

using ggml::Buffer;
using ggml::BufferType;
using ggml::ComputeParams;
using ggml::Tensor;

namespace {

const Path *active;
std::atomic<bool> entered{false}, watched{false};
// State of the thread that loads a model (calls supports_op) or plans a pass (calls work_size).
thread_local bool wanted = true;
bool used() { return entered && wanted; }
std::mutex lock;
std::string foreign;  // distinct names of operations
std::atomic<uint64_t> left_to_ggml{0};  // bit set of weight types

BufferType *buffer_type();

bool is_ours(const Tensor *t) { return t && t->buffer && t->buffer->buft == buffer_type(); }

const Kind &kind_in(const Tensor *op) {
    if (const Kind *kind = kind_of(*active, op->src[0])) return *kind;
    fprintf(stderr, "paceline's kernels: %s is used in a shape that it was not laid out for; use --kernels off\n", op->src[0]->name);
    abort();
}

struct Products : ggml::TensorTraits {
    bool work_size(int, const Tensor *op, size_t &size) override {
        size = mul_mat_work(kind_in(op), op);
        return true;
    }
    bool compute_forward(ComputeParams *p, Tensor *op) override {
        mul_mat(*active, kind_in(op), *p, op);
        return true;
    }
} products;

// True if an operation was planned for our kernels: its work buffer exists, and all threads agree.
bool is_planned(const Tensor *op) { return op->padding[0] == 'P'; }
void plan(const Tensor *op, bool ours) { const_cast<Tensor *>(op)->padding[0] = ours ? 'P' : 0; }

void note_foreign(const Tensor *op) {
    if (std::find(std::begin(ggml::ROW_BY_ROW), std::end(ggml::ROW_BY_ROW), op->op) != std::end(ggml::ROW_BY_ROW)) return;
    const std::lock_guard<std::mutex> held(lock);
    const std::string name = calls.op_name(op->op);
    if ((" " + foreign + " ").find(" " + name + " ") == std::string::npos) foreign += (foreign.empty() ? "" : " ") + name;
}

struct Attention : ggml::TensorTraits {
    bool work_size(int threads, const Tensor *op, size_t &size) override {
        plan(op, used());
        if (!used()) return false;
        size = attention_work(threads, op);
        return true;
    }
    bool compute_forward(ComputeParams *p, Tensor *op) override {
        if (!is_planned(op)) {
            if (watched) note_foreign(op);
            return false;
        }
        attention(*active, *p, op);
        return true;
    }
} attention_traits;

struct Writes : ggml::TensorTraits {  // only observed: ggml computes it
    bool work_size(int, const Tensor *, size_t &) override { return false; }
    bool compute_forward(ComputeParams *p, Tensor *op) override {
        if (p->ith == 0) note_written(op);
        return false;
    }
} writes;

struct Extra : ggml::ExtraBufferType {
    bool supports_op(ggml::Device *, const Tensor *op) override {
        const bool product = op->op == ggml::MUL_MAT || op->op == ggml::MUL_MAT_ID;
        const Tensor *w = op->src[0], *x = op->src[1];
        if (!product || !is_ours(w)) return false;
        const bool is_repacked = w->buffer->size > 0;  // ggml has no fallback then
        const bool left = unsigned(w->type) < 64 && left_to_ggml >> unsigned(w->type) & 1;
        return ((used() && !left) || is_repacked) && !is_ours(x) && !is_ours(op->src[2]) && kind_of(*active, w) &&
               x->type == ggml::F32 && (!x->buffer || calls.is_host(x->buffer->buft)) &&
               (op->op == ggml::MUL_MAT_ID || (x->ne[2] % w->ne[2] == 0 && x->ne[3] % w->ne[3] == 0));
    }
    ggml::TensorTraits *get_tensor_traits(const Tensor *op) override {
        if ((op->op == ggml::MUL_MAT || op->op == ggml::MUL_MAT_ID) && is_ours(op->src[0])) return &products;
        if (op->op == ggml::FLASH_ATTN_EXT && entered && has_attention(op)) return &attention_traits;
        if (op->op == ggml::SET_ROWS && entered) return &writes;
        if (watched) note_foreign(op);
        return nullptr;
    }
} extra;

const char *get_name(BufferType *) { return "CPU_PACELINE"; }
size_t get_alignment(BufferType *) { return 64; }
size_t get_alloc_size(BufferType *, const Tensor *t) {
    const Kind *kind = kind_of(*active, t);
    return kind ? repacked_size(*kind, t) : 0;
}

void set_tensor(Buffer *buffer, Tensor *t, const void *data, size_t offset, size_t) {
    if (offset != 0) abort();  // the loader gives whole tensors
    if (refer_to_shared(buffer, t)) return;
    repack(*kind_of(*active, t), t, data);
    share(buffer, t);
}

Buffer *alloc_buffer(BufferType *type, size_t size) {
    Buffer *buffer = calls.alloc_buffer(calls.cpu_buffer_type(), size);
    if (!buffer) return nullptr;
    buffer->buft = type;
    buffer->iface.set_tensor = set_tensor;
    buffer->iface.get_tensor = nullptr;
    buffer->iface.set_tensor_2d = nullptr;
    buffer->iface.get_tensor_2d = nullptr;
    buffer->iface.cpy_tensor = nullptr;
    watch_free(buffer);
    return buffer;
}

BufferType *buffer_type() {
    static BufferType type = {{get_name, alloc_buffer, get_alignment, nullptr, get_alloc_size, nullptr},
                              calls.reg_device(calls.cpu_reg(), 0), static_cast<ggml::ExtraBufferType *>(&extra)};
    return &type;
}

#if defined(__x86_64__)
[[maybe_unused]] bool has_avx_vnni() {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
}
#elif defined(__aarch64__) && defined(__linux__)
bool has_dotprod() { return getauxval(AT_HWCAP) >> 20 & 1; }
bool has_i8mm() { return has_dotprod() && getauxval(AT_HWCAP2) >> 13 & 1; }
#elif defined(__aarch64__) && defined(__APPLE__)
bool has(const char *feature) {
    int found = 0;
    size_t size = sizeof found;
    return sysctlbyname(feature, &found, &size, nullptr, 0) == 0 && found;
}
bool has_dotprod() { return has("hw.optional.arm.FEAT_DotProd"); }
bool has_i8mm() { return has_dotprod() && has("hw.optional.arm.FEAT_I8MM"); }
#endif

// The paths of this processor, best first.
std::vector<const Path *> paths() {
    std::vector<const Path *> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (!avx2) return found;
#ifdef WITH_AVX512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
        found.push_back(&avx512_path);
#endif
#ifdef WITH_AVXVNNI
    if (has_avx_vnni()) found.push_back(&avxvnni_path);
#endif
#ifdef WITH_AVX2
    found.push_back(&avx2_path);
#endif
#elif defined(__aarch64__)
#ifdef WITH_I8MM
    if (has_i8mm()) found.push_back(&i8mm_path);
#endif
#ifdef WITH_NEON
    if (has_dotprod()) found.push_back(&neon_path);
#endif
#endif
    return found;
}

// Compute a known product through ggml, with integers, whose sum is exact in every order.
bool known_product() {
    constexpr int K = 64, ROWS = 21, COLUMNS = 3;
    std::vector<float> w(K * ROWS), x(K * COLUMNS), y(ROWS * COLUMNS, -1.0f);
    for (size_t i = 0; i < w.size(); i++) w[i] = float(int(i * 7 % 13) - 6);
    for (size_t i = 0; i < x.size(); i++) x[i] = float(int(i * 5 % 11) - 5);
    GgmlProduct product(ggml::F32, K, ROWS, COLUMNS, buffer_type());
    if (!product.is_possible() || !product.compute(w.data(), x.data())) return false;
    product.read(y.data());
    bool right = true;
    for (int i = 0; i < COLUMNS; i++)
        for (int r = 0; r < ROWS; r++) {
            float sum = 0;
            for (int k = 0; k < K; k++) sum += w[size_t(r * K + k)] * x[size_t(i * K + k)];
            right = right && sum == y[size_t(i * ROWS + r)];
        }
    return right;
}

// True if ggml offers weights to our type: it builds its list once, when the first model is loaded.
bool is_offered() {
    BufferType **types = offered_types();
    while (types && *types && *types != buffer_type()) types++;
    return types && *types;
}

const char *try_enter(const char *name, void *library) {
    if (paths().empty()) return "there are no kernels for this processor";
    const Path *chosen = find_path(name);
    if (!chosen) return "this processor cannot run the requested kernels";
    if (const char *missing = find_calls(library); *missing) return missing;
    if (strcmp(calls.version(), ggml::VERSION)) return "llama.cpp is another version than the kernels were written for";
    if (calls.tensor_overhead() != sizeof(Tensor) + ggml::OBJECT_SIZE) return "llama.cpp's tensors have another size here";
    const struct { int op; const char *name; } known[] = {
        {ggml::MUL_MAT, "MUL_MAT"}, {ggml::MUL_MAT_ID, "MUL_MAT_ID"}, {ggml::SET_ROWS, "SET_ROWS"}, {ggml::CPY, "CPY"},
        {ggml::FLASH_ATTN_EXT, "FLASH_ATTN_EXT"}, {ggml::LAST_ROW_BY_ROW, "GLU"}};
    for (const auto &one : known)
        if (strcmp(calls.op_name(one.op), one.name)) return "llama.cpp's operations have other numbers here";
    active = chosen;
    entered = true;
    auto &types = calls.extra_buffer_types();
    types.insert(types.begin(), buffer_type());
    if (!is_offered()) {
        entered = false;
        types.erase(types.begin());
        return "a model was loaded without them before";
    }
    if (known_product()) return "";
    entered = false;  // the type stays registered, and accepts no weights
    return "a known product came out wrong";
}

}  // namespace

const Path *find_path(const char *name) {
    const auto found = paths();
    for (const Path *path : found)
        if (!*name || !strcmp(path->name, name)) return path;
    return nullptr;
}

}  // namespace paceline

// path: one of paceline_kernels_paths(), "" for the best. library: llama.cpp's handle from dlopen. Returns "" if
// the kernels are in use, otherwise the reason why not.
API const char *paceline_kernels_enter(const char *path, void *library) {
    static std::mutex entering;
    static const char *result = nullptr;  // once per process: a registered buffer type stays
    const std::lock_guard<std::mutex> held(entering);
    if (!result) result = paceline::try_enter(path, library);
    return result;
}

API const char *paceline_kernels_path() { return paceline::active ? paceline::active->name : ""; }

API const char *paceline_kernels_paths() {
    static const std::string names = [] {
        std::string all;
        for (const auto *path : paceline::paths()) all += (all.empty() ? "" : " ") + std::string(path->name);
        return all;
    }();
    return names.c_str();
}

API void paceline_kernels_use(int on) { paceline::wanted = on != 0; }

// The file that this thread loads from now on, "" for none; see sharing.h.
API void paceline_kernels_load(const char *file) { paceline::set_loaded_file(file); }

// Seconds of a product with `columns` rows of activations and weights in the named buffer type; ""
// for our kernels. Negative if it does not exist or rejects the weights.
API double paceline_kernels_seconds(int type, int columns, const char *buffer) {
    if (!*buffer) return paceline::product_seconds(type, columns, paceline::buffer_type());
    for (auto **types = paceline::offered_types(); types && *types; types++)
        if (!strcmp((*types)->iface.get_name(*types), buffer)) return paceline::product_seconds(type, columns, *types);
    return -1;
}

// Leave weights of the type to ggml, in models loaded from now on.
API void paceline_kernels_leave(int type) { paceline::left_to_ggml |= uint64_t(1) << type; }

API void paceline_kernels_watch() {
    const std::lock_guard<std::mutex> held(paceline::lock);
    paceline::foreign.clear();
    paceline::watched = true;
}

API const char *paceline_kernels_foreign() {
    static thread_local std::string names;
    const std::lock_guard<std::mutex> held(paceline::lock);
    paceline::watched = false;
    names = paceline::foreign;
    return names.c_str();
}

// Entry of llama.cpp's programs that preload this library. An environment variable enables the kernels: a
// path, or "auto".
API void llama_backend_init() {
    if (auto begin = reinterpret_cast<void (*)()>(dlsym(RTLD_NEXT, "llama_backend_init"))) begin();
    const char *name = getenv("PACELINE_PRELOADED_KERNELS");
    if (!name || !*name || !strcmp(name, "off")) return;
    const char *refused = paceline_kernels_enter(strcmp(name, "auto") ? name : "", RTLD_DEFAULT);
    if (*refused) fprintf(stderr, "paceline's kernels: %s\n", refused);
}
