// The C interface: attention with a score mod and a mask from texts, its gradients, and errors.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tilewright/c_api.h>

enum { kHeads = 2, kLength = 64, kDim = 16 };

// Our memory as the library sees it: f32, row-major, on the CPU.
static DLTensor view(float* data, int ndim, int64_t* shape) {
    DLTensor tensor = {0};
    tensor.data = data;
    tensor.device.device_type = kDLCPU;
    tensor.ndim = ndim;
    tensor.dtype.code = kDLFloat;
    tensor.dtype.bits = 32;
    tensor.dtype.lanes = 1;
    tensor.shape = shape;
    return tensor;
}

// Every function returns a status; tw_error() is the error text of this thread's last failure.
static void check(tw_status status) {
    if (status == TW_OK) return;
    fprintf(stderr, "%s: %s\n", status == TW_OUT_OF_MEMORY ? "out of memory" : "failed",
            tw_error());
    exit(1);
}

int main(void) {
    static float data[3][kHeads * kLength * kDim];
    for (int t = 0; t < 3; ++t)
        for (int i = 0; i < kHeads * kLength * kDim; ++i)
            data[t][i] = (float)((i * (7 + t)) % 13) / 13 - 0.5F;
    int64_t shape[4] = {1, kHeads, kLength, kDim};
    const DLTensor query = view(data[0], 4, shape);
    const DLTensor key = view(data[1], 4, shape);
    const DLTensor value = view(data[2], 4, shape);

    // A score mod is a text; the arrays that it reads come by name, and must outlive it.
    float slopes[kHeads] = {0.25F, 0.0625F};
    int64_t heads[1] = {kHeads};
    const DLTensor table = view(slopes, 1, heads);
    const char* names[] = {"slopes"};
    const DLTensor* arrays[] = {&table};
    tw_mod* alibi = NULL;
    check(tw_parse_mod("score + slopes[h] * (kv - q)", TW_MOD_SCORE, names, arrays, 1, &alibi));

    // A mask becomes data once, for any number of calls.
    tw_mod* window = NULL;
    tw_mask* mask = NULL;
    check(tw_parse_mod("sliding_window(16)", TW_MOD_MASK, NULL, NULL, 0, &window));
    check(tw_create_block_mask(window, 1, 1, kLength, kLength, 16, 16, &mask));
    double sparsity = 0;
    check(tw_mask_describe(mask, &sparsity, NULL));
    printf("%.1f%% of the blocks are empty\n", sparsity);

    // Options start from their defaults. A null place, as that of the row maxima, asks for nothing.
    tw_attention_options options;
    tw_attention_options_init(&options);
    options.score_mod = alibi;
    options.block_mask = mask;
    DLManagedTensor* out = NULL;
    DLManagedTensor* lse = NULL;
    check(tw_attention(&query, &key, &value, &options, &out, &lse, NULL));
    const float* rows = (const float*)out->dl_tensor.data;

    // Gradients, here of the sum of the output; one place for each float array of the score mod.
    static float ones[kHeads * kLength * kDim];
    for (int i = 0; i < kHeads * kLength * kDim; ++i) ones[i] = 1;
    const DLTensor dout = view(ones, 4, shape);
    DLManagedTensor* dquery = NULL;
    DLManagedTensor* dslopes[1] = {NULL};
    check(tw_attention_backward(&query, &key, &value, &out->dl_tensor, &lse->dl_tensor, &dout, NULL,
                                &options, &dquery, NULL, NULL, NULL, dslopes, 1));

    // Bad input is refused with the argument's name; no result is written.
    DLTensor narrow = key;
    int64_t other[4] = {1, kHeads, kLength, kDim / 2};
    narrow.shape = other;
    DLManagedTensor* none = NULL;
    if (tw_attention(&query, &narrow, &value, NULL, &none, NULL, NULL) != TW_BAD_INPUT || none)
        return 1;
    printf("refused: %s\n", tw_error());

    // The first query sees the first key alone, so its output is the first value.
    for (int d = 0; d < kDim; ++d)
        if (!(fabs(rows[d] - data[2][d]) < 1e-6)) return 1;
    if (!isfinite(((const float*)dslopes[0]->dl_tensor.data)[1])) return 1;

    tw_release(out);
    tw_release(lse);
    tw_release(dquery);
    tw_release(dslopes[0]);
    tw_mask_release(mask);
    tw_mod_release(window);
    tw_mod_release(alibi);
    return 0;
}
