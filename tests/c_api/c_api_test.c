// The C interface, used from C: values, errors, ownership.
#include "tilewright/c_api.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

#define EXPECT(condition)                                                   \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            fprintf(stderr, "  last error: %s\n", tw_error());              \
            ++failures;                                                     \
        }                                                                   \
    } while (0)

static DLTensor view(float* data, int rank, int64_t* shape) {
    DLTensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.data = data;
    tensor.device.device_type = kDLCPU;
    tensor.ndim = rank;
    tensor.dtype.code = kDLFloat;
    tensor.dtype.bits = 32;
    tensor.dtype.lanes = 1;
    tensor.shape = shape;
    return tensor;
}

static void norms(void) {
    enum { kRows = 3, kWidth = 5 };
    float x[kRows * kWidth];
    float ones[kRows * kWidth];
    for (int i = 0; i < kRows * kWidth; ++i) {
        x[i] = (float)(i % 7) - 2.5F;
        ones[i] = 1;
    }
    int64_t shape[2] = {kRows, kWidth};
    const DLTensor input = view(x, 2, shape);
    const DLTensor dy = view(ones, 2, shape);
    DLManagedTensor* y = NULL;
    DLManagedTensor* deviation = NULL;
    EXPECT(tw_rms_norm(&input, NULL, 0.0, NULL, &y, NULL, &deviation) == TW_OK);
    EXPECT(y && deviation && y->dl_tensor.ndim == 2 && deviation->dl_tensor.ndim == 1);
    if (!y || !deviation) return;
    const float* have = (const float*)y->dl_tensor.data;
    for (int row = 0; row < kRows; ++row) {
        double squares = 0;
        for (int i = 0; i < kWidth; ++i)
            squares += (double)x[row * kWidth + i] * x[row * kWidth + i];
        for (int i = 0; i < kWidth; ++i) {
            const double want = x[row * kWidth + i] / sqrt(squares / kWidth);
            EXPECT(fabs(have[row * kWidth + i] - want) < 1e-6);
        }
    }
    DLManagedTensor* dx = NULL;
    EXPECT(tw_rms_norm_backward(&input, &deviation->dl_tensor, NULL, 0.0, &dy, NULL, &dx, NULL) ==
           TW_OK);
    EXPECT(dx && dx->dl_tensor.shape[0] == kRows);
    tw_release(dx);
    tw_release(y);
    tw_release(deviation);

    DLManagedTensor* mean = NULL;
    EXPECT(tw_layer_norm(&input, NULL, NULL, 1e-5, NULL, &y, NULL, &mean, &deviation) == TW_OK);
    EXPECT(tw_layer_norm_backward(&input, &mean->dl_tensor, &deviation->dl_tensor, NULL, NULL, 1e-5,
                                  &dy, NULL, &dx, NULL, NULL) == TW_OK);
    tw_release(dx);
    tw_release(y);
    tw_release(mean);
    tw_release(deviation);
}

static void mods(void) {
    float slopes[4] = {1, 2, 3, 4};
    int64_t shape[1] = {4};
    const DLTensor array = view(slopes, 1, shape);
    const DLTensor* arrays[1] = {&array};
    const char* names[1] = {"slopes"};
    tw_mod* mod = NULL;
    EXPECT(tw_parse_mod("score + slopes[h] * (kv - q)", TW_MOD_SCORE, names, arrays, 1, &mod) ==
           TW_OK);
    const char* ir = tw_mod_ir(mod);
    EXPECT(ir && strstr(ir, "%slopes"));
    tw_mod_release(mod);

    mod = NULL;
    EXPECT(tw_parse_mod("score + ", TW_MOD_ANY, NULL, NULL, 0, &mod) == TW_BAD_INPUT);
    EXPECT(mod == NULL && strstr(tw_error(), "column"));
    EXPECT(tw_parse_mod("q >= kv", TW_MOD_SCORE, NULL, NULL, 0, &mod) == TW_BAD_INPUT);
    EXPECT(tw_parse_mod(NULL, TW_MOD_ANY, NULL, NULL, 0, &mod) == TW_BAD_INPUT);
    EXPECT(tw_mod_ir(NULL) == NULL);
    tw_mod_release(NULL);
}

static void errors(void) {
    float x[2] = {1, 2};
    int64_t shape[1] = {2};
    DLTensor input = view(x, 1, shape);
    DLManagedTensor* y = NULL;
    EXPECT(tw_rms_norm(NULL, NULL, 0.0, NULL, &y, NULL, NULL) == TW_BAD_INPUT);
    EXPECT(y == NULL && strstr(tw_error(), "expected x"));
    EXPECT(tw_rms_norm(&input, NULL, -1.0, NULL, &y, NULL, NULL) == TW_BAD_INPUT);
    input.dtype.bits = 24;
    EXPECT(tw_rms_norm(&input, NULL, 0.0, NULL, &y, NULL, NULL) == TW_BAD_INPUT);
    EXPECT(tw_set_num_threads(-1) == TW_BAD_INPUT);
    tw_release(NULL);
}

int main(void) {
    EXPECT(strchr(tw_version(), '.') != NULL);
    EXPECT(strstr(tw_doctor(), "CUDA") != NULL);
    EXPECT(tw_set_num_threads(0) == TW_OK);
    EXPECT(tw_set_checked(0) == TW_OK);
    norms();
    mods();
    errors();
    if (failures) fprintf(stderr, "%d failed\n", failures);
    return failures ? 1 : 0;
}
