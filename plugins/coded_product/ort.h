// ssd::CodedProduct for ONNX Runtime.
#pragma once

#include <exception>
#include <new>

#include "plugins/coded_product/kernel.h"
#include "plugins/ort/operator.h"

namespace ssd {

class CodedProduct {
public:
    static constexpr const char* kName = "CodedProduct";
    static constexpr int kInputs[] = {ort::kFloat, ort::kInt8, ort::kFloat};

    static ort::Status* create(const ort::Api& api, const ort::KernelInfo* info,
                               CodedProduct** made) {
        ort::Tensor codes, scales;
        int64_t block = 0;
        SSD_RETURN_ERROR(constant(api, info, 1, &codes));
        SSD_RETURN_ERROR(constant(api, info, 2, &scales));
        SSD_RETURN_ERROR(api.attribute(info, "block", &block));
        const Shape shape{codes.dims[0], codes.dims[1], block};
        if (!shape.is_supported() || scales.dims[0] != shape.num_blocks() ||
            scales.dims[1] != shape.outputs) {
            return api.error(ort::kInvalidArgument,
                             "ssd::CodedProduct: block is a multiple of 16 up to 1024 that divides "
                             "the inputs, and scales are [inputs / block, outputs]");
        }
        Panels panels(shape, codes.as<int8_t>(), scales.as<float>());
        if (panels.is_valid()) *made = new (std::nothrow) CodedProduct(api, std::move(panels));
        if (*made == nullptr) {
            return api.error(ort::kFailed, "ssd::CodedProduct: no memory for a matrix");
        }
        return nullptr;
    }

    ort::Status* compute(ort::KernelContext* context) const {
        const Shape& shape = matrix_.shape();
        ort::Tensor x;
        SSD_RETURN_ERROR(ort::read_input(api_, context, 0, &x));
        if (x.num_dims == 0 || x.dims[x.num_dims - 1] != shape.inputs) {
            return api_.error(ort::kInvalidArgument,
                              "ssd::CodedProduct: x has another width than the matrix has inputs");
        }
        Job job{matrix_, nullptr, x.as<float>(), nullptr, 1};
        for (size_t i = 0; i + 1 < x.num_dims; ++i) job.num_rows *= x.dims[i];
        x.dims[x.num_dims - 1] = shape.outputs;
        SSD_RETURN_ERROR(ort::make_output(api_, context, x.dims, x.num_dims, &job.y));
        if (job.num_rows == 0) return nullptr;

        // Kept from call to call and shared by all products of a thread: it stays in its cache.
        thread_local Rows rows;
        try {
            rows.resize(job.num_rows, shape);
        } catch (const std::exception&) {
            return api_.error(ort::kFailed, "ssd::CodedProduct: no memory for the rows");
        }
        job.rows = &rows;
        if (job.num_rows < kRowsRoundedAlone) {
            for (int64_t row = 0; row < job.num_rows; ++row) Job::round(&job, row);
        } else {
            SSD_RETURN_ERROR(api_.in_parallel(context, Job::round, job.num_rows, &job));
        }
        return api_.in_parallel(context, Job::multiply, shape.num_panels(), &job);
    }

private:
    static constexpr int64_t kRowsRoundedAlone = 16;  // fewer are rounded by the calling thread

    // One call, for the threads that share it.
    struct Job {
        const Panels& matrix;
        Rows* rows;
        const float* x;
        float* y;
        int64_t num_rows;

        static void round(void* job, size_t row) {
            auto& self = *static_cast<Job*>(job);
            const Shape& shape = self.matrix.shape();
            round_row(self.x + row * shape.inputs, shape, *self.rows, row);
        }
        static void multiply(void* job, size_t panel) {
            auto& self = *static_cast<Job*>(job);
            multiply_panel(self.matrix, panel, *self.rows, self.num_rows, self.y);
        }
    };

    CodedProduct(const ort::Api& api, Panels&& matrix) : api_(api), matrix_(std::move(matrix)) {}

    static ort::Status* constant(const ort::Api& api, const ort::KernelInfo* info, size_t index,
                                 ort::Tensor* tensor) {
        int is_constant = 0;
        const ort::Value* value = nullptr;
        SSD_RETURN_ERROR(api.constant(info, index, &is_constant, &value));
        if (is_constant == 0) {
            return api.error(ort::kInvalidArgument,
                             "ssd::CodedProduct: codes and scales must be initializers");
        }
        SSD_RETURN_ERROR(ort::read(api, value, tensor));
        if (tensor->num_dims != 2) {
            return api.error(ort::kInvalidArgument,
                             "ssd::CodedProduct: codes are [K, N], scales [K / block, N]");
        }
        return nullptr;
    }

    ort::Api api_;
    Panels matrix_;
};

}  // namespace ssd
