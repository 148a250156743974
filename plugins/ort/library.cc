// The ssd:: operators of ONNX Runtime's CPU provider.
#include <mutex>

#include "plugins/coded_product/ort.h"
#include "plugins/grouped_attention/ort.h"
#include "plugins/ort/operator.h"

namespace {

constexpr ort::Operator kOperators[] = {
    ort::operator_of<ssd::CodedProduct>(),
    ort::operator_of<ssd::GroupedAttention>(),
};

}  // namespace

// What ONNX Runtime calls in a library of operators.
extern "C" __attribute__((visibility("default"))) ort::Status* RegisterCustomOps(
    ort::SessionOptions* options, const ort::ApiBase* base) {
    const ort::Api api(base->table(ort::kVersion));
    if (!api) return nullptr;  // older than any that we require: its sessions run the functions
    // One for as long as the library is loaded: ONNX Runtime keeps its address, and lets the
    // library go with the last session that has it. Sessions may be made at the same time.
    static std::mutex lock;
    static ort::Domain* domain = nullptr;
    const std::lock_guard<std::mutex> guard(lock);
    if (domain == nullptr) {
        ort::Domain* made = nullptr;
        SSD_RETURN_ERROR(api.create_domain("ssd", &made));
        for (const ort::Operator& each : kOperators) {
            if (ort::Status* error = api.add_operator(made, &each); error != nullptr) {
                api.release(made);
                return error;
            }
        }
        domain = made;
    }
    return api.add_domain(options, domain);
}
