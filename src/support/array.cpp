// Rounds f64 values to the float element types.
#include "support/array.h"

#include "support/small_float.h"

namespace tilewright {

double round_to(double value, DType dtype) {
    switch (dtype) {
        case DType::f16:
            return f16_to_f32(f64_to_f16(value));
        case DType::bf16:
            return bf16_to_f32(f64_to_bf16(value));
        case DType::f32:
            return static_cast<float>(value);
        case DType::f8e4m3:
            return f8e4m3_to_f32(f32_to_f8e4m3(static_cast<float>(value)));
        case DType::f8e5m2:
            return f8e5m2_to_f32(f32_to_f8e5m2(static_cast<float>(value)));
        default:
            return value;
    }
}

}  // namespace tilewright
