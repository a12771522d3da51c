// The norms in the C interface.
#include "tilewright/norm.h"

#include "c_api/convert.h"

using namespace tilewright;
using c_api::borrow;
using c_api::guarded;
using c_api::Results;

tw_status tw_rms_norm(const DLTensor* x, const DLTensor* weight, double eps,
                      const DLTensor* residual, DLManagedTensor** y, DLManagedTensor** sum,
                      DLManagedTensor** inverse_deviation) {
    return guarded([&] {
        const NormOutput output =
            rms_norm(borrow(x), borrow(weight), {.eps = eps, .residual = borrow(residual)});
        Results results;
        results.add(y, output.y);
        results.add(sum, output.sum);
        results.add(inverse_deviation, output.inverse_deviation);
        results.give();
    });
}

tw_status tw_rms_norm_backward(const DLTensor* sum, const DLTensor* inverse_deviation,
                               const DLTensor* weight, double eps, const DLTensor* dy,
                               const DLTensor* dsum, DLManagedTensor** dx,
                               DLManagedTensor** dweight) {
    return guarded([&] {
        const NormOutput forward{.y = {},
                                 .sum = borrow(sum),
                                 .inverse_deviation = borrow(inverse_deviation),
                                 .mean = {}};
        const NormGradients gradients =
            rms_norm_backward(forward, borrow(weight), borrow(dy), borrow(dsum), {.eps = eps});
        Results results;
        results.add(dx, gradients.x);
        results.add(dweight, gradients.weight);
        results.give();
    });
}

tw_status tw_layer_norm(const DLTensor* x, const DLTensor* weight, const DLTensor* bias, double eps,
                        const DLTensor* residual, DLManagedTensor** y, DLManagedTensor** sum,
                        DLManagedTensor** mean, DLManagedTensor** inverse_deviation) {
    return guarded([&] {
        const NormOutput output = layer_norm(borrow(x), borrow(weight), borrow(bias),
                                             {.eps = eps, .residual = borrow(residual)});
        Results results;
        results.add(y, output.y);
        results.add(sum, output.sum);
        results.add(mean, output.mean);
        results.add(inverse_deviation, output.inverse_deviation);
        results.give();
    });
}

tw_status tw_layer_norm_backward(const DLTensor* sum, const DLTensor* mean,
                                 const DLTensor* inverse_deviation, const DLTensor* weight,
                                 const DLTensor* bias, double eps, const DLTensor* dy,
                                 const DLTensor* dsum, DLManagedTensor** dx,
                                 DLManagedTensor** dweight, DLManagedTensor** dbias) {
    return guarded([&] {
        const NormOutput forward{.y = {},
                                 .sum = borrow(sum),
                                 .inverse_deviation = borrow(inverse_deviation),
                                 .mean = borrow(mean)};
        const NormGradients gradients = layer_norm_backward(forward, borrow(weight), borrow(bias),
                                                            borrow(dy), borrow(dsum), {.eps = eps});
        Results results;
        results.add(dx, gradients.x);
        results.add(dweight, gradients.weight);
        results.add(dbias, gradients.bias);
        results.give();
    });
}
