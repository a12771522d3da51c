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

enum { kHeads = 2, kLength = 6, kDim = 4 };

/// Rows of softmax(mask(q k^T / 2 + slope (kv - q))) v, one head after the other; causal.
static void reference(const float* q, const float* k, const float* v, const float* slopes,
                      double* out) {
    for (int h = 0; h < kHeads; ++h) {
        for (int i = 0; i < kLength; ++i) {
            double weight[kLength];
            double total = 0;
            for (int j = 0; j <= i; ++j) {
                double score = 0;
                for (int d = 0; d < kDim; ++d)
                    score +=
                        (double)q[(h * kLength + i) * kDim + d] * k[(h * kLength + j) * kDim + d];
                weight[j] = exp(score / 2 + slopes[h] * (j - i));
                total += weight[j];
            }
            for (int d = 0; d < kDim; ++d) {
                double sum = 0;
                for (int j = 0; j <= i; ++j) sum += weight[j] * v[(h * kLength + j) * kDim + d];
                out[(h * kLength + i) * kDim + d] = sum / total;
            }
        }
    }
}

static void attentions(void) {
    enum { kSize = kHeads * kLength * kDim };
    float data[3][kSize];
    for (int t = 0; t < 3; ++t)
        for (int i = 0; i < kSize; ++i) data[t][i] = (float)((i * (7 + t) + 3 * t) % 13) / 6 - 1;
    float slopes[kHeads] = {0.25F, 0.5F};
    int64_t shape[4] = {1, kHeads, kLength, kDim};
    int64_t heads[1] = {kHeads};
    const DLTensor q = view(data[0], 4, shape);
    const DLTensor k = view(data[1], 4, shape);
    const DLTensor v = view(data[2], 4, shape);
    const DLTensor table = view(slopes, 1, heads);
    const DLTensor* arrays[1] = {&table};
    const char* names[1] = {"slopes"};
    tw_mod* score = NULL;
    tw_mod* causal = NULL;
    tw_mask* mask = NULL;
    EXPECT(tw_parse_mod("score + slopes[h] * (kv - q)", TW_MOD_SCORE, names, arrays, 1, &score) ==
           TW_OK);
    EXPECT(tw_parse_mod("causal", TW_MOD_MASK, NULL, NULL, 0, &causal) == TW_OK);
    EXPECT(tw_create_block_mask(causal, 1, 1, kLength, kLength, 4, 4, &mask) == TW_OK);
    double sparsity = 0;
    int64_t nbytes = 0;
    EXPECT(tw_mask_describe(mask, &sparsity, &nbytes) == TW_OK);
    EXPECT(fabs(sparsity - 25) < 1e-9 && nbytes > 0);

    double want[kSize];
    reference(data[0], data[1], data[2], slopes, want);
    for (int how = 0; how < 3; ++how) {  // causal as a flag, as a mod, as data
        tw_attention_options options;
        tw_attention_options_init(&options);
        options.score_mod = score;
        options.causal = how == 0;
        if (how == 1) options.mask_mod = causal;
        if (how == 2) options.block_mask = mask;
        DLManagedTensor* out = NULL;
        DLManagedTensor* lse = NULL;
        EXPECT(tw_attention(&q, &k, &v, &options, &out, &lse, NULL) == TW_OK);
        if (!out || !lse) continue;
        for (int i = 0; i < kSize; ++i)
            EXPECT(fabs(((const float*)out->dl_tensor.data)[i] - want[i]) < 1e-5);
        DLManagedTensor* gradients[5] = {NULL, NULL, NULL, NULL, NULL};
        EXPECT(tw_attention_backward(&q, &k, &v, &out->dl_tensor, &lse->dl_tensor, &v, NULL,
                                     &options, &gradients[0], &gradients[1], &gradients[2],
                                     &gradients[3], &gradients[4], 1) == TW_OK);
        EXPECT(gradients[0] && gradients[1] && gradients[2] && !gradients[3] && gradients[4]);
        EXPECT(tw_attention_backward(&q, &k, &v, &out->dl_tensor, &lse->dl_tensor, &v, NULL,
                                     &options, NULL, NULL, NULL, NULL, gradients,
                                     2) == TW_BAD_INPUT);
        for (int i = 0; i < 5; ++i) tw_release(gradients[i]);
        tw_release(out);
        tw_release(lse);
        options.size = 4;
        EXPECT(tw_attention(&q, &k, &v, &options, NULL, NULL, NULL) == TW_BAD_INPUT);
    }
    EXPECT(tw_attention(&q, NULL, &v, NULL, NULL, NULL, NULL) == TW_BAD_INPUT);
    EXPECT(strstr(tw_error(), "key") != NULL);
    tw_mask_release(mask);
    tw_mask_release(NULL);
    tw_mod_release(causal);
    tw_mod_release(score);
}

static void programs(void) {
    const char* const ir =
        "func @add(%x: ref<f32[2]>, %y: ref<f32[2]>, %z: ref<f32[2]>) {\n"
        "  %0 = constant 0 : i64\n"
        "  %1 = load %x[%0 : 2] : f32[2]\n"
        "  %2 = load %y[%0 : 2] : f32[2]\n"
        "  %3 = add %1, %2 : f32[2]\n"
        "  store %z[%0 : 2], %3\n"
        "  yield\n"
        "}\n";
    const DLDevice cpu = {kDLCPU, 0};
    tw_program* program = NULL;
    EXPECT(tw_program_create(ir, cpu, 0, &program) == TW_OK);
    EXPECT(tw_program_arrays(program) == 3);
    const char* name = NULL;
    DLDataType dtype;
    int rank = 0;
    const int64_t* extents = NULL;
    int written = 0;
    EXPECT(tw_program_array(program, 2, &name, &dtype, &rank, &extents, &written) == TW_OK);
    EXPECT(strcmp(name, "z") == 0 && dtype.code == kDLFloat && dtype.bits == 32);
    EXPECT(rank == 1 && extents[0] == 2 && written == 1);
    EXPECT(tw_program_array(program, 0, NULL, NULL, NULL, NULL, &written) == TW_OK && !written);
    EXPECT(tw_program_array(program, 3, NULL, NULL, NULL, NULL, NULL) == TW_BAD_INPUT);

    float x[2] = {1, 2};
    float y[2] = {10, 20};
    float z[2] = {0, 0};
    int64_t shape[1] = {2};
    const DLTensor vx = view(x, 1, shape);
    const DLTensor vy = view(y, 1, shape);
    const DLTensor vz = view(z, 1, shape);
    const DLTensor* arrays[3] = {&vx, &vy, &vz};
    EXPECT(tw_program_run(program, arrays, 3) == TW_OK);
    EXPECT(z[0] == 11 && z[1] == 22);
    EXPECT(tw_program_run(program, arrays, 2) == TW_BAD_INPUT);
    EXPECT(strstr(tw_error(), "expected 3 arrays but got 2") != NULL);
    arrays[2] = &vx;
    EXPECT(tw_program_run(program, arrays, 3) == TW_BAD_INPUT);
    tw_program_release(program);
    tw_program_release(NULL);
    EXPECT(tw_program_arrays(NULL) == 0);

    tw_program* none = NULL;
    EXPECT(tw_program_create("func @", cpu, 0, &none) == TW_BAD_INPUT && none == NULL);
    EXPECT(tw_program_create(NULL, cpu, 0, &none) == TW_BAD_INPUT);
    const DLDevice other = {kDLCUDAHost, 0};
    EXPECT(tw_program_create(ir, other, 0, &none) == TW_BAD_INPUT);
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

    // Fields after `shape` are not read.
    input = view(x, 1000, shape);
    EXPECT(tw_rms_norm(&input, NULL, 0.0, NULL, &y, NULL, NULL) == TW_BAD_INPUT);
    EXPECT(y == NULL && strstr(tw_error(), "ndim = 1000"));
    input = view((float*)((char*)x + 1), 1, shape);
    EXPECT(tw_rms_norm(&input, NULL, 0.0, NULL, &y, NULL, NULL) == TW_BAD_INPUT);
    EXPECT(strstr(tw_error(), "a multiple of 4 bytes"));
    tw_mod* mod = NULL;
    EXPECT(tw_parse_mod("causal", 77, NULL, NULL, 0, &mod) == TW_BAD_INPUT);
    EXPECT(mod == NULL && strstr(tw_error(), "77"));
    // One element, repeated: the input takes no memory, the result more than there is.
    int64_t many[1] = {(int64_t)1 << 50};
    int64_t strides[1] = {0};
    input = view(x, 1, many);
    input.strides = strides;
    EXPECT(tw_rms_norm(&input, NULL, 0.0, NULL, &y, NULL, NULL) == TW_OUT_OF_MEMORY);
    EXPECT(y == NULL && strstr(tw_error(), "bytes of memory"));
}

int main(void) {
    EXPECT(strchr(tw_version(), '.') != NULL);
    EXPECT(strstr(tw_doctor(), "CUDA") != NULL);
    EXPECT(tw_set_num_threads(0) == TW_OK);
    EXPECT(tw_set_checked(0) == TW_OK);
    norms();
    mods();
    attentions();
    programs();
    errors();
    if (failures) fprintf(stderr, "%d failed\n", failures);
    return failures ? 1 : 0;
}
