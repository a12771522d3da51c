// Rewrites generated kernels for the host.
#include "tests/cuda/emulated_source.h"

#include <fmt/format.h>

#include <regex>
#include <vector>

namespace tilewright::testing_support {

const char* const kEmulatedIncludes =
    "#include \"cuda/device/ptx/types.cuh\"\n#include \"cuda/device/ptx/matrix_move.cuh\"\n"
    "#include \"cuda/device/ptx/mma.cuh\"\n#include \"cuda/device/tile/memory.cuh\"\n"
    "#include \"cuda/device/tile/hopper.cuh\"\n#include \"cuda/device/tile/cluster.cuh\"\n#include "
    "\"cuda/device/tile/sort.cuh\"\n"
    "using namespace twd;\n";

std::string emulated_source(const std::string& source, const std::string& kernel,
                            const std::string& name) {
    // kEmulatedIncludes replaces the headers of tile programs; those of other modules stay.
    const std::size_t kernel_begin = source.find("extern \"C\"");
    std::string text;
    for (std::size_t line = 0; line < kernel_begin; line = source.find('\n', line) + 1) {
        const std::string one = source.substr(line, source.find('\n', line) + 1 - line);
        if (one.starts_with("#include \"") && !one.starts_with("#include \"cuda/")) text += one;
    }
    text += source.substr(kernel_begin);
    // Each block of a cluster has its own memory.
    const std::string shared = "extern __shared__ __align__(1024) u8 memory[];";
    if (const auto found = text.find(shared); found != std::string::npos) {
        text.replace(found, shared.size(),
                     "u8* const memory = ::memory + emulator::rank() * kSharedBytes;");
    }
    const std::size_t at = text.find(kernel + "(");
    const std::size_t begin = at + kernel.size() + 1, end = text.find(") {\n", begin);
    std::string list = text.substr(begin, end - begin);
    std::vector<std::string> types;
    while (!list.empty()) {
        const std::size_t next = list.find(", const ");
        std::string one = list.substr(0, next);
        list.erase(0, next == std::string::npos ? next : next + 2);
        for (const char* word : {"const ", "__grid_constant__ "}) {
            if (const auto found = one.find(word); found != std::string::npos) {
                one.erase(found, std::string(word).size());
            }
        }
        types.push_back(one.substr(0, one.rfind(' ')));
    }
    text.replace(at, kernel.size(), name);
    static const std::regex kShared(R"((\d+) bytes of shared memory)");
    std::smatch found;
    const std::string top = source.substr(0, source.find('\n'));
    const std::string shared_bytes =
        std::regex_search(top, found, kShared) ? found[1].str() : "kSharedBytes";
    std::string arguments, sizes;
    for (std::size_t p = 0; p < types.size(); ++p) {
        arguments += fmt::format("{}*static_cast<{}*>(p[{}])", p == 0 ? "" : ", ", types[p], p);
        sizes += fmt::format("sizeof({}), ", types[p]);
    }
    return text +
           fmt::format(
               "extern \"C\" void run_{0}(void** p, const unsigned* grid, int threads, unsigned "
               "seed) "
               "{{\n"
               "    emulator::shared_bytes = {3};\n"
               "    gridDim = {{grid[0], grid[1], 1}};\n"
               "    for (long i = 0; i < static_cast<long>(grid[0]) * grid[1]; i += grid[2]) {{\n"
               "        blockIdx = {{static_cast<unsigned>(i % grid[0]), "
               "static_cast<unsigned>(i / grid[0]), 0}};\n"
               "        emulator::run_block(threads, seed + i, [&] {{ {0}({1}); }}, grid[2]);\n"
               "    }}\n}}\n"
               "extern \"C\" const unsigned long sizes_{0}[] = {{{2}0}};\n",
               name, arguments, sizes, shared_bytes);
}

std::string emulated_user_source(const std::string& source) {
    // The number of lines stays the same, since messages name lines.
    static const std::regex kDynamic(
        R"(extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?([\w:<> ]+?)\s+(\w+)\s*\[\s*\]\s*;)");
    const std::string text =
        std::regex_replace(source, kDynamic, "$1* const $2 = reinterpret_cast<$1*>(::memory);");
    return std::regex_replace(text, std::regex("__shared__"), "static");
}

std::string emulated_compile_command(const std::string& file, const std::string& object,
                                     const std::string& options) {
    // An address that is not aligned to what is read or written there is an illegal instruction.
    return fmt::format(
        "{0} -std=c++20 -O0 -w -fno-strict-aliasing -ffp-contract=off -fPIC -shared "
        "-fsanitize=alignment -fsanitize-undefined-trap-on-error "
        "-I {1}/tests/cuda/emulator -I {1}/src{4} -o {2} {3} 2>&1",
        TW_CXX_COMPILER, TW_SOURCE_FOLDER, object, file, options);
}

}  // namespace tilewright::testing_support
