// The part of ONNX Runtime's C interface that an operator needs, declared here because its packages
// for Python bring no headers.
//
// The interface is one table of functions. A release only ever appends to it, so a function keeps
// its place for good; places and types are those of onnxruntime_c_api.h. What a function returns is
// an error, or null.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ort {

struct Status;
struct Value;
struct ShapeInfo;
struct KernelInfo;
struct KernelContext;
struct Domain;
struct SessionOptions;

constexpr uint32_t kVersion = 22;  // of the table: ONNX Runtime 1.22 and later have it

enum ElementType : int { kFloat = 1, kInt8 = 3 };
enum ErrorCode : int { kFailed = 1, kInvalidArgument = 2 };

class Api {
public:
    explicit Api(const void* table = nullptr) : table_(static_cast<void* const*>(table)) {}
    explicit operator bool() const { return table_ != nullptr; }

    Status* error(ErrorCode code, const char* message) const {
        return call<0, Status*>(code, message);
    }
    Status* create_domain(const char* name, Domain** made) const {
        return call<26, Status*>(name, made);
    }
    Status* add_operator(Domain* domain, const struct Operator* added) const {
        return call<27, Status*>(domain, added);
    }
    Status* add_domain(SessionOptions* options, Domain* domain) const {
        return call<28, Status*>(options, domain);
    }
    Status* data(Value* value, void** address) const { return call<51, Status*>(value, address); }
    Status* element_type(const ShapeInfo* info, int* type) const {
        return call<60, Status*>(info, type);
    }
    Status* num_dims(const ShapeInfo* info, size_t* count) const {
        return call<61, Status*>(info, count);
    }
    Status* dims(const ShapeInfo* info, int64_t* sizes, size_t count) const {
        return call<62, Status*>(info, sizes, count);
    }
    Status* shape_info(const Value* value, ShapeInfo** info) const {
        return call<65, Status*>(value, info);
    }
    Status* attribute(const KernelInfo* info, const char* name, float* value) const {
        return call<85, Status*>(info, name, value);
    }
    Status* attribute(const KernelInfo* info, const char* name, int64_t* value) const {
        return call<86, Status*>(info, name, value);
    }
    Status* input(const KernelContext* context, size_t index, const Value** value) const {
        return call<90, Status*>(context, index, value);
    }
    Status* output(KernelContext* context, size_t index, const int64_t* sizes, size_t count,
                   Value** value) const {
        return call<91, Status*>(context, index, sizes, count, value);
    }
    void release(ShapeInfo* info) const { call<99, void>(info); }
    void release(Domain* domain) const { call<101, void>(domain); }
    // An input that is an initializer: `is_constant` is 0 for any other.
    Status* constant(const KernelInfo* info, size_t index, int* is_constant,
                     const Value** value) const {
        return call<249, Status*>(info, index, is_constant, value);
    }
    // work(data, 0), ... work(data, count - 1) on the session's threads, in as many batches as
    // there are threads.
    Status* in_parallel(const KernelContext* context, void (*work)(void*, size_t), size_t count,
                        void* data) const {
        return call<274, Status*>(context, work, count, size_t{0}, data);
    }

private:
    template <int kPlace, class Result, class... Args>
    Result call(Args... args) const {
        return reinterpret_cast<Result (*)(Args...)>(table_[kPlace])(args...);
    }
    void* const* table_;
};

// What `RegisterCustomOps` is given: the way to the table.
struct ApiBase {
    const void* (*table)(uint32_t version);
    const char* (*version_text)();
};

// An operator, as ONNX Runtime reads it up to version 18 of the table. Its address is kept.
struct Operator {
    uint32_t version = kVersion;
    void* create_unchecked = nullptr;  // before version 16
    const char* (*name)(const Operator*);
    const char* (*provider)(const Operator*);  // null: the CPU
    int (*input_type)(const Operator*, size_t);
    size_t (*num_inputs)(const Operator*);
    int (*output_type)(const Operator*, size_t);
    size_t (*num_outputs)(const Operator*);
    void* compute_unchecked = nullptr;  // before version 16
    void (*destroy)(void* kernel);
    int (*input_kind)(const Operator*, size_t);  // 0: required
    int (*output_kind)(const Operator*, size_t);
    int (*input_memory)(const Operator*, size_t);  // 0: where the provider computes
    int (*variadic_inputs[2])(const Operator*);    // fewest, and whether all are of a type
    int (*variadic_outputs[2])(const Operator*);
    Status* (*create)(const Operator*, const void* table, const KernelInfo*, void** kernel);
    Status* (*compute)(void* kernel, KernelContext*);
    void* infer_shapes = nullptr;
    int (*first_version)(const Operator*);
    int (*last_version)(const Operator*);
    void* in_place[4] = {};
};

}  // namespace ort
