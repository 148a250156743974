// What the operators' forms for ONNX Runtime share: tensors, errors, and the table of functions
// that stands for an operator.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "plugins/ort/abi.h"

#define SSD_RETURN_ERROR(expression)                             \
    if (ort::Status* error_ = (expression); error_ != nullptr) { \
        return error_;                                           \
    }

namespace ort {

constexpr size_t kMostDims = 8;

struct Tensor {
    void* data = nullptr;
    int type = 0;
    size_t num_dims = 0;
    int64_t dims[kMostDims] = {};

    template <class Element>
    Element* as() const {
        return static_cast<Element*>(data);
    }
};

inline Status* read(const Api& api, const Value* value, Tensor* tensor) {
    ShapeInfo* info = nullptr;
    SSD_RETURN_ERROR(api.shape_info(value, &info));
    Status* error = api.element_type(info, &tensor->type);
    if (error == nullptr) error = api.num_dims(info, &tensor->num_dims);
    if (error == nullptr && tensor->num_dims > kMostDims) {
        error = api.error(kInvalidArgument, "ssd: a tensor of more than 8 dimensions");
    }
    if (error == nullptr) error = api.dims(info, tensor->dims, tensor->num_dims);
    api.release(info);
    if (error != nullptr) return error;
    return api.data(const_cast<Value*>(value), &tensor->data);
}

inline Status* read_input(const Api& api, const KernelContext* context, size_t index,
                          Tensor* tensor) {
    const Value* value = nullptr;
    SSD_RETURN_ERROR(api.input(context, index, &value));
    return read(api, value, tensor);
}

// The memory of an output of float32, [dims].
inline Status* make_output(const Api& api, KernelContext* context, const int64_t* dims,
                           size_t num_dims, float** data) {
    Value* value = nullptr;
    void* address = nullptr;
    SSD_RETURN_ERROR(api.output(context, 0, dims, num_dims, &value));
    SSD_RETURN_ERROR(api.data(value, &address));
    *data = static_cast<float*>(address);
    return nullptr;
}

// An operator with one output of float32. `Kernel` has
//
//     kName, kInputs                           a string, and an array of element types
//     create(api, info, Kernel** made)         static; once a node
//     compute(KernelContext*) const            once a call, from any thread
template <class Kernel>
constexpr Operator operator_of() {
    return {
        .name = [](const Operator*) { return Kernel::kName; },
        .provider = [](const Operator*) -> const char* { return nullptr; },
        .input_type = [](const Operator*, size_t index) -> int { return Kernel::kInputs[index]; },
        .num_inputs = [](const Operator*) -> size_t { return std::size(Kernel::kInputs); },
        .output_type = [](const Operator*, size_t) -> int { return kFloat; },
        .num_outputs = [](const Operator*) -> size_t { return 1; },
        .destroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); },
        .input_kind = [](const Operator*, size_t) { return 0; },
        .output_kind = [](const Operator*, size_t) { return 0; },
        .input_memory = [](const Operator*, size_t) { return 0; },
        .variadic_inputs = {[](const Operator*) { return 1; }, [](const Operator*) { return 1; }},
        .variadic_outputs = {[](const Operator*) { return 1; }, [](const Operator*) { return 1; }},
        .create = [](const Operator*, const void* table, const KernelInfo* info,
                     void** kernel) -> Status* {
            Kernel* made = nullptr;
            SSD_RETURN_ERROR(Kernel::create(Api(table), info, &made));
            *kernel = made;
            return nullptr;
        },
        .compute = [](void* kernel, KernelContext* context) -> Status* {
            return static_cast<const Kernel*>(kernel)->compute(context);
        },
        .first_version = [](const Operator*) { return 1; },
        .last_version = [](const Operator*) { return INT_MAX; },
    };
}

}  // namespace ort
