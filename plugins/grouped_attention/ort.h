// ssd::GroupedAttention for ONNX Runtime.
#pragma once

#include <atomic>
#include <exception>
#include <new>

#include "plugins/grouped_attention/kernel.h"
#include "plugins/ort/operator.h"

namespace ssd {

class GroupedAttention {
public:
    static constexpr const char* kName = "GroupedAttention";
    static constexpr int kInputs[] = {ort::kFloat, ort::kFloat, ort::kFloat, ort::kFloat};

    static ort::Status* create(const ort::Api& api, const ort::KernelInfo* info,
                               GroupedAttention** made) {
        float scale = 0;
        SSD_RETURN_ERROR(api.attribute(info, "scale", &scale));
        *made = new (std::nothrow) GroupedAttention(api, scale);
        if (*made == nullptr) return api.error(ort::kFailed, "ssd::GroupedAttention: no memory");
        return nullptr;
    }

    ort::Status* compute(ort::KernelContext* context) const {
        ort::Tensor inputs[4];
        for (size_t i = 0; i < 4; ++i) {
            SSD_RETURN_ERROR(ort::read_input(api_, context, i, &inputs[i]));
            if (inputs[i].num_dims != 4) return refuse();
        }
        const auto& [queries, keys, values, bias] = inputs;
        const AttentionShape shape{queries.dims[0], queries.dims[1], keys.dims[1],
                                   queries.dims[2], keys.dims[2],    queries.dims[3]};
        const int64_t expected_keys[] = {shape.batch, shape.groups, shape.rows, shape.size};
        bool fits = shape.groups > 0 && shape.heads % shape.groups == 0 && shape.size > 0 &&
                    bias.dims[0] == shape.batch && bias.dims[1] == 1 &&
                    bias.dims[2] >= shape.tokens && bias.dims[3] == shape.rows;
        for (int i = 0; i < 4; ++i) {
            fits &= keys.dims[i] == expected_keys[i] && values.dims[i] == expected_keys[i];
        }
        if (!fits) return refuse();
        Job job{{
            .shape = shape,
            .queries = queries.as<float>(),
            .keys = keys.as<float>(),
            .values = values.as<float>(),
            .bias = bias.as<float>(),
            .bias_tokens = bias.dims[2],
            .scale = scale_,
            .context = nullptr,
        }};
        const int64_t dims[] = {shape.batch, shape.tokens, shape.heads * shape.size};
        SSD_RETURN_ERROR(ort::make_output(api_, context, dims, 3, &job.call.context));
        if (shape.batch * shape.tokens == 0) return nullptr;
        SSD_RETURN_ERROR(api_.in_parallel(context, Job::attend, shape.num_parts(), &job));
        if (job.has_failed) return api_.error(ort::kFailed, "ssd::GroupedAttention: no memory");
        return nullptr;
    }

private:
    GroupedAttention(const ort::Api& api, float scale) : api_(api), scale_(scale) {}

    // One call, for the threads that share it.
    struct Job {
        AttentionCall call;
        std::atomic<bool> has_failed = false;

        static void attend(void* job, size_t part) {
            auto& self = *static_cast<Job*>(job);
            try {
                attend_part(self.call, part);
            } catch (const std::exception&) {  // none may leave a thread of ONNX Runtime's
                self.has_failed = true;
            }
        }
    };

    ort::Status* refuse() const {
        return api_.error(ort::kInvalidArgument,
                          "ssd::GroupedAttention: expected queries [B, H, T, D], keys and values "
                          "[B, G, L, D] and a bias [B, 1, T or more, L], with H a multiple of "
                          "G");
    }

    ort::Api api_;
    float scale_;
};

}  // namespace ssd
