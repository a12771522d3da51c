// `tilewright mask`: shows a mask from text as a picture with its sparsity, size and build time,
// and writes it to a file.
#include "tilewright/mask.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/progress.h"
#include "cli/tensor_file.h"
#include "mask/block_mask.h"
#include "support/check.h"
#include "support/write_file.h"

namespace tilewright::cli {
namespace {

struct MaskOptions {
    std::string text, svg, png, out;
    std::int64_t q_len = 0, kv_len = 0;
    std::optional<std::int64_t> batch, heads;
    std::vector<std::string> block = {"128"};
    std::vector<std::string> bindings;
};

std::string size_text(std::int64_t bytes) {
    if (bytes < 10'000) return fmt::format("{} bytes", bytes);
    if (bytes < 10'000'000) return fmt::format("{:.1f} kB", static_cast<double>(bytes) / 1e3);
    return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

/// Writes the picture to a file, or to standard output for `-`.
void draw(const BlockMask& mask, const std::string& path, bool png, std::ostream& out) {
    if (path == "-") {
        out << (png ? mask.png() : mask.svg());
    } else if (!path.empty()) {
        mask.save(path);
    }
}

void make_mask(const MaskOptions& options, Console& console) {
    const auto sizes = parse_integers("mask", "--block SIZE or Q,KV",
                                      fmt::format("{}", fmt::join(options.block, ",")), 1, 2);
    const BlockSize block(sizes.front(), sizes.back());
    int to_output = use_standard_output({options.out}) ? 1 : 0;
    for (const auto& [path, ending] :
         {std::pair(options.svg, ".svg"), std::pair(options.png, ".png")}) {
        to_output += path == "-" ? 1 : 0;
        if (!path.empty() && path != "-" && !path.ends_with(ending))
            user_error("mask", "expected a file name that ends in {}, or -, but got {}", ending,
                       path);
    }
    if (to_output > 1)
        user_error("mask", "expected - for one of --out, --svg and --png but got several");
    if (!options.out.empty()) check_outputs({{options.out, "block-mask", u32}}, &console.out);
    for (const std::string& path : {options.svg, options.png})
        if (!path.empty() && path != "-") expect_writable("mask", path);
    const Bindings arrays = load_bindings("mask", options.bindings, &console.input);
    const Mod mod = parse_mod(options.text, arrays, Mod::Kind::mask);
    expect_bindings_read("mask", arrays, {mod});
    const Mod::Reads reads = mod.reads();
    if (reads.batch && !options.batch)
        user_error("mask", "expected --batch for a mask that depends on b but got none");
    if (reads.head && !options.heads)
        user_error("mask", "expected --heads for a mask that depends on h but got none");
    const auto start = std::chrono::steady_clock::now();
    const BlockMask mask = [&] {
        const Elapsed elapsed("building the mask");
        return create_block_mask(mod, options.batch.value_or(1), options.heads.value_or(1),
                                 options.q_len, options.kv_len, block);
    }();
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    // Drawing a large mask takes a while: the number of blocks grows with the square of the length.
    const auto& data = *mask.state()->data;
    std::int64_t full = 0;
    for (const mask::Run& run : data.runs) full += run.full() ? run.count : 0;
    const auto drawn = [](const auto& work) {
        const Elapsed elapsed("drawing the mask");
        return work();
    };
    const std::string picture = drawn([&] { return mask.to_string(); });
    std::ostream& notes = console.notes(to_output > 0);
    notes << picture << '\n'
          << fmt::format("sparsity  {:.2f}% of blocks of {} x {}\n", mask.sparsity(), block.q,
                         block.kv)
          << fmt::format("pieces    {} full and {} partial of 64 x 64, {} distinct\n", full,
                         data.ids.size(), data.atoms.atoms().size() - 2)
          << fmt::format("size      {}\n", size_text(mask.nbytes()))
          << fmt::format("built in  {:.2f} ms\n", time.count());
    drawn([&] {
        draw(mask, options.svg, false, console.out);
        draw(mask, options.png, true, console.out);
    });
    if (!options.out.empty()) {
        const Tensor words = mask.packed();
        save_tensors({{options.out, "block-mask", words}}, &console.out);
        notes << fmt::format("wrote {}: {}\n", options.out, words.type_name());
    }
}

}  // namespace

void add_mask(CLI::App& app, Console& console) {
    auto options = std::make_shared<MaskOptions>();
    CLI::App* command = app.add_subcommand("mask", "draw a mask, measure it, write it to a file");
    command
        ->add_option("mask", options->text,
                     "an expression over b, h, q, kv and the names of the mask library, such as "
                     "\"causal & sliding_window(1024)\"")
        ->type_name("TEXT")
        ->required();
    add_size(*command, "--q-len", options->q_len, "queries")->required();
    add_size(*command, "--kv-len", options->kv_len, "keys")->required();
    add_size(*command, "--batch", options->batch, "needed where the mask depends on b");
    add_size(*command, "--heads", options->heads, "needed where the mask depends on h");
    command
        ->add_option("--bind", options->bindings,
                     "an array that the text reads: .npy, .safetensors[:NAME], - for standard "
                     "input (repeatable)")
        ->type_name("NAME=FILE");
    command
        ->add_option("--block", options->block,
                     "queries and keys of a block, for the picture of characters and the sparsity")
        ->type_name("SIZE|Q,KV")
        ->default_str("128")
        ->expected(1, 2);
    command->add_option("--svg", options->svg, "also draw the mask into this file; - for output")
        ->type_name("FILE.svg");
    command->add_option("--png", options->png, "also draw the mask into this file; - for output")
        ->type_name("FILE.png");
    command
        ->add_option("--out", options->out,
                     "write the mask to .npy or .safetensors[:block-mask], for attention "
                     "--block-mask; - for output")
        ->type_name("FILE");
    add_threads(*command);
    command->callback([options, &console] { make_mask(*options, console); });
}

}  // namespace tilewright::cli
