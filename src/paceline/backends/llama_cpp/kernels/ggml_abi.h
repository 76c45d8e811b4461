// The part of ggml's binary interface that is used, in the release that Paceline pins. ggml's headers that
// declare it are private or not installed; entry.cpp checks the release and sizes, and computes a known
// product, before the kernels are used.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace paceline::ggml {

constexpr const char *VERSION = "0.25.3";
constexpr size_t OBJECT_SIZE = 32;  // sizeof(ggml_object), before each tensor

enum Op : int { NONE = 0, MUL_MAT = 29, MUL_MAT_ID = 30, CPY = 34, SET_ROWS = 42, FLASH_ATTN_EXT = 74, LAST_ROW_BY_ROW = 100 };
// Operations whose rows are independent in ggml: element-wise ones, norms, softmax, rope, copies, sorting;
// and recurrences (SSM_CONV to GATED_DELTA_NET), which go from row to row and keep their state in F32.
constexpr int ROW_BY_ROW[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 15, 17, 18, 20, 22, 24, 25, 27,
                              28, 32, 33, 34, 35, 36, 37, 38, 39, 40, 42, 46, 48, 50, 64, 67, 69, 70, 71, 73, 76, 77, 82,
                              83, 84, 86, 91, 100};
enum Type : int { F32 = 0, F16 = 1, I32 = 26, I64 = 27, BF16 = 30 };

struct Device;
struct BufferType;
struct Buffer;
struct ThreadPool;
struct Backend;
struct Context;
struct Graph;

struct Tensor {
    int type;
    Buffer *buffer;
    int64_t ne[4];
    size_t nb[4];
    int op;
    int32_t op_params[16];
    int32_t flags;
    Tensor *src[10];
    Tensor *view_src;
    size_t view_offs;
    void *data;
    char name[64];
    void *extra;
    char padding[8];
};

struct BufferTypeInterface {
    const char *(*get_name)(BufferType *);
    Buffer *(*alloc_buffer)(BufferType *, size_t);
    size_t (*get_alignment)(BufferType *);
    size_t (*get_max_size)(BufferType *);
    size_t (*get_alloc_size)(BufferType *, const Tensor *);
    bool (*is_host)(BufferType *);
};
struct BufferType {
    BufferTypeInterface iface;
    Device *device;
    void *context;
};
struct BufferInterface {
    void (*free_buffer)(Buffer *);
    void *(*get_base)(Buffer *);
    int (*init_tensor)(Buffer *, Tensor *);
    void (*memset_tensor)(Buffer *, Tensor *, uint8_t, size_t, size_t);
    void (*set_tensor)(Buffer *, Tensor *, const void *, size_t, size_t);
    void (*get_tensor)(Buffer *, const Tensor *, void *, size_t, size_t);
    void (*set_tensor_2d)(Buffer *, Tensor *, const void *, size_t, size_t, size_t, size_t, size_t);
    void (*get_tensor_2d)(Buffer *, const Tensor *, void *, size_t, size_t, size_t, size_t, size_t);
    bool (*cpy_tensor)(Buffer *, const Tensor *, Tensor *);
    void (*clear)(Buffer *, uint8_t);
    void (*reset)(Buffer *);
};
struct Buffer {
    BufferInterface iface;
    BufferType *buft;
    void *context;
    size_t size;
    int usage;
};
struct ComputeParams {
    int ith, nth;
    size_t wsize;
    void *wdata;
    ThreadPool *threadpool;
    bool use_ref;
};
struct TypeTraits {
    const char *type_name;
    int64_t blck_size, blck_size_interleave;
    size_t type_size;
    bool is_quantized;
    void (*to_float)(const void *, float *, int64_t);
    void (*from_float)(const float *, void *, int64_t);
};
struct InitParams {
    size_t mem_size;
    void *mem_buffer;
    bool no_alloc;
};

// ggml's classes, by the shape of their virtual tables.
class TensorTraits {
  public:
    virtual ~TensorTraits() {}
    virtual bool work_size(int n_threads, const Tensor *op, size_t &size) = 0;
    virtual bool compute_forward(ComputeParams *params, Tensor *op) = 0;
};
class ExtraBufferType {
  public:
    virtual ~ExtraBufferType() {}
    virtual bool supports_op(Device *device, const Tensor *op) = 0;
    virtual TensorTraits *get_tensor_traits(const Tensor *op) = 0;
};

// ggml's functions, looked up in the loaded libraries.
struct Calls {
    const char *(*version)();
    const char *(*op_name)(int);
    size_t (*tensor_overhead)();
    std::vector<BufferType *> &(*extra_buffer_types)();
    BufferType *(*cpu_buffer_type)();
    Buffer *(*alloc_buffer)(BufferType *, size_t);
    bool (*is_host)(BufferType *);
    void *(*cpu_reg)();
    Device *(*reg_device)(void *, size_t);
    void *(*proc_address)(void *, const char *);
    void (*barrier)(ThreadPool *);
    void (*chunk_set)(ThreadPool *, int);
    int (*chunk_add)(ThreadPool *, int);
    const TypeTraits *(*type_traits)(int);
    // For products that ggml computes (ggml_product.cpp).
    Context *(*init)(InitParams);
    void (*free_context)(Context *);
    Tensor *(*new_tensor_2d)(Context *, int, int64_t, int64_t);
    Tensor *(*mul_mat)(Context *, Tensor *, Tensor *);
    Graph *(*new_graph)(Context *);
    void (*expand)(Graph *, Tensor *);
    Buffer *(*alloc_tensors)(Context *, BufferType *);
    void (*tensor_set)(Tensor *, const void *, size_t, size_t);
    void (*tensor_get)(const Tensor *, void *, size_t, size_t);
    void (*free_buffer)(Buffer *);
    size_t (*nbytes)(const Tensor *);
    Backend *(*cpu_init)();
    void (*set_threads)(Backend *, int);
    int (*compute)(Backend *, Graph *);
    void (*free_backend)(Backend *);
    // OpenMP's threads, which ggml computes with; null if it uses others.
    void (*parallel)(void (*)(void *), void *, unsigned n, unsigned flags);
};

}  // namespace paceline::ggml
