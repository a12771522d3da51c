// `tilewright mask`: a mask from text as a picture, with its sparsity, size and build time.
#include "tilewright/mask.h"

#include <fmt/format.h>

#include <chrono>
#include <map>
#include <memory>

#include "cli/command.h"
#include "cli/tensor_file.h"
#include "mask/block_mask.h"
#include "support/check.h"

namespace tilewright::cli {
namespace {

struct MaskOptions {
    std::string text, svg, png;
    std::int64_t q_len = 0, kv_len = 0, batch = 1, heads = 1;
    std::vector<std::string> block = {"128"};
    std::vector<std::string> bindings;
};

std::string size_text(std::int64_t bytes) {
    if (bytes < 10'000) return fmt::format("{} bytes", bytes);
    if (bytes < 10'000'000) return fmt::format("{:.1f} kB", static_cast<double>(bytes) / 1e3);
    return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

void draw(const MaskOptions& options, Console& console) {
    const auto sizes = parse_integers("mask", "--block SIZE or Q,KV",
                                      fmt::format("{}", fmt::join(options.block, ",")), 1, 2);
    const BlockSize block(sizes.front(), sizes.back());
    const Bindings arrays = load_bindings("mask", options.bindings);
    const Mod mod = parse_mod(options.text, arrays, Mod::Kind::mask);
    expect_bindings_read("mask", arrays, {mod});
    const auto start = std::chrono::steady_clock::now();
    const BlockMask mask =
        create_block_mask(mod, options.batch, options.heads, options.q_len, options.kv_len, block);
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    // Large masks are described in their blocks, whose number grows with the square of the length.
    const auto& data = *mask.state()->data;
    std::int64_t full = 0;
    for (const mask::Run& run : data.runs) full += run.full() ? run.count : 0;
    console.out << mask << '\n'
                << fmt::format("sparsity  {:.2f}% of blocks of {} x {}\n", mask.sparsity(), block.q,
                               block.kv)
                << fmt::format("pieces    {} full and {} partial of 64 x 64, {} distinct\n", full,
                               data.ids.size(), data.atoms.atoms().size() - 2)
                << fmt::format("size      {}\n", size_text(mask.nbytes()))
                << fmt::format("built in  {:.2f} ms\n", time.count());
    for (const std::string& path : {options.svg, options.png}) {
        if (!path.empty()) mask.save(path);
    }
}

}  // namespace

void add_mask(CLI::App& app, Console& console) {
    auto options = std::make_shared<MaskOptions>();
    CLI::App* command = app.add_subcommand("mask", "draw a mask");
    command
        ->add_option("mask", options->text,
                     "an expression over b, h, q, kv and the names of the mask library, such as "
                     "\"causal & sliding_window(1024)\"")
        ->required();
    command->add_option("--q-len", options->q_len, "queries")->required();
    command->add_option("--kv-len", options->kv_len, "keys")->required();
    command->add_option("--batch", options->batch);
    command->add_option("--heads", options->heads);
    command->add_option("--bind", options->bindings,
                        "name=FILE: an array of the text (repeatable)");
    command->add_option("--block", options->block, "SIZE or Q,KV: of blocks; 128 by default")
        ->expected(1, 2);
    command->add_option("--svg", options->svg, "also draw the mask into this file");
    command->add_option("--png", options->png, "also draw the mask into this file");
    command->callback([options, &console] {
        for (const auto& [path, ending] :
             {std::pair(options->svg, ".svg"), std::pair(options->png, ".png")}) {
            if (!path.empty() && !path.ends_with(ending))
                user_error("mask", "expected a file name that ends in {} but got {}", ending, path);
        }
        draw(*options, console);
    });
}

}  // namespace tilewright::cli
