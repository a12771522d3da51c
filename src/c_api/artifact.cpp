// Artifacts in the C interface.
#include "tilewright/artifact.h"

#include <vector>

#include "c_api/convert.h"
#include "support/check.h"

using namespace tilewright;
using c_api::borrow;
using c_api::expect_given;
using c_api::guarded;

struct tw_artifact {
    Artifact artifact;
};

tw_status tw_artifact_load(const char* folder, DLDevice device, const char* checksum,
                           tw_artifact** result) {
    return guarded([&] {
        expect_given("tw_artifact_load", "folder", folder);
        expect_given("tw_artifact_load", "result", result);
        *result = new tw_artifact{Artifact(folder, c_api::device_of("tw_artifact_load", device),
                                           checksum ? checksum : "")};
    });
}

void tw_artifact_release(tw_artifact* artifact) {
    delete artifact;
}

int tw_artifact_arrays(const tw_artifact* artifact) {
    return artifact ? static_cast<int>(artifact->artifact.parameters().size()) : 0;
}

tw_status tw_artifact_array(const tw_artifact* artifact, int index, const char** name,
                            DLDataType* dtype, int* rank, const int64_t** shape, int* written) {
    return guarded([&] {
        expect_given("tw_artifact_array", "artifact", artifact);
        const auto& parameters = artifact->artifact.parameters();
        if (index < 0 || static_cast<std::size_t>(index) >= parameters.size())
            user_error("tw_artifact_array", "expected an index below {} but got {}",
                       parameters.size(), index);
        const Artifact::Parameter& parameter = parameters[index];
        if (name) *name = parameter.name.c_str();
        if (dtype) *dtype = c_api::dtype_of(parameter.type.dtype);
        if (rank) *rank = static_cast<int>(parameter.type.shape.size());
        if (shape) *shape = parameter.type.shape.data();
        if (written) *written = parameter.written ? 1 : 0;
    });
}

tw_status tw_artifact_run(const tw_artifact* artifact, const DLTensor* const* arrays, int count) {
    return guarded([&] {
        expect_given("tw_artifact_run", "artifact", artifact);
        if (count > 0) expect_given("tw_artifact_run", "arrays", arrays);
        std::vector<Tensor> tensors;
        for (int i = 0; i < count; ++i) tensors.push_back(borrow(arrays[i]));
        artifact->artifact.run(tensors);
    });
}
