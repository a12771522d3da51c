// Programs of IR text in the C interface.
#include "tilewright/program.h"

#include <vector>

#include "c_api/convert.h"
#include "support/check.h"

using namespace tilewright;
using c_api::borrow;
using c_api::expect_given;
using c_api::guarded;

struct tw_program {
    Program program;
};

tw_status tw_program_create(const char* ir, DLDevice device, int checked, tw_program** result) {
    return guarded([&] {
        expect_given("tw_program_create", "ir", ir);
        expect_given("tw_program_create", "result", result);
        ProgramOptions options;
        options.device = c_api::device_of("tw_program_create", device);
        options.checked = checked != 0;
        *result = new tw_program{Program(ir, std::move(options))};
    });
}

void tw_program_release(tw_program* program) {
    delete program;
}

int tw_program_arrays(const tw_program* program) {
    return program ? static_cast<int>(program->program.parameters().size()) : 0;
}

tw_status tw_program_array(const tw_program* program, int index, const char** name,
                           DLDataType* dtype, int* rank, const int64_t** shape, int* written) {
    return guarded([&] {
        expect_given("tw_program_array", "program", program);
        const auto& parameters = program->program.parameters();
        if (index < 0 || static_cast<std::size_t>(index) >= parameters.size())
            user_error("tw_program_array", "expected an index below {} but got {}",
                       parameters.size(), index);
        const Program::Parameter& parameter = parameters[index];
        if (name) *name = parameter.name.c_str();
        if (dtype) *dtype = c_api::dtype_of(parameter.type.dtype);
        if (rank) *rank = static_cast<int>(parameter.type.shape.size());
        if (shape) *shape = parameter.type.shape.data();
        if (written) *written = parameter.written ? 1 : 0;
    });
}

tw_status tw_program_run(const tw_program* program, const DLTensor* const* arrays, int count) {
    return guarded([&] {
        expect_given("tw_program_run", "program", program);
        if (count > 0) expect_given("tw_program_run", "arrays", arrays);
        std::vector<Tensor> tensors;
        for (int i = 0; i < count; ++i) tensors.push_back(borrow(arrays[i]));
        program->program.run(tensors);
    });
}
