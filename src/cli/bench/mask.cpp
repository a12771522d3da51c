// `tilewright bench mask`: the time to build masks of long sequences, on the CPU and on a GPU.
#include "tilewright/mask.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "cli/bench/cases.h"
#include "mask/block_mask.h"
#include "mask/build.h"
#include "mask/dense.h"
#include "support/check.h"
#include "tilewright/masks.h"

namespace tilewright::cli {
namespace {

constexpr std::int64_t kTokens = std::int64_t{1} << 20;
constexpr std::int64_t kDocuments = 1000;
constexpr std::int64_t kCheckedTokens = 3000;  ///< compared pair by pair

/// Ids of `documents` documents of random lengths.
Tensor document_ids(std::int64_t tokens, std::int64_t documents) {
    std::mt19937_64 random(1);
    std::vector<std::int64_t> starts;
    for (std::int64_t i = 1; i < documents; ++i)
        starts.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(tokens)));
    std::sort(starts.begin(), starts.end());
    std::vector<std::int32_t> ids(tokens);
    std::size_t document = 0;
    for (std::int64_t i = 0; i < tokens; ++i) {
        while (document < starts.size() && starts[document] <= i) ++document;
        ids[i] = static_cast<std::int32_t>(document);
    }
    return Tensor::from_vector(ids, {tokens});
}

struct Case {
    std::string name;
    Mod mod;
};

Case documents_case(std::int64_t tokens, Device device) {
    const std::int64_t documents = std::min(kDocuments, tokens);
    const Capture ids = capture(document_ids(tokens, documents).to(device), "ids");
    return {fmt::format("causal & document ({} documents)", documents),
            masks::causal() & masks::document(ids)};
}

std::vector<Case> cases(std::int64_t tokens) {
    // The image closest to a square with as many pixels as there are tokens.
    auto height = static_cast<std::int64_t>(std::sqrt(static_cast<double>(tokens)));
    while (tokens % height != 0) --height;
    const std::int64_t width = tokens / height, kernel = std::min<std::int64_t>(7, height);
    return {
        {"causal", masks::causal()},
        documents_case(tokens, Device{}),
        {"sliding_window(1024)", masks::sliding_window(1024)},
        {"prefix_lm(2048)", masks::prefix_lm(2048)},
        {fmt::format("natten({0}, {1}, {2}, {2})", width, height, kernel),
         masks::natten(width, height, kernel, kernel)},
    };
}

/// Builds a mask without create_block_mask, which caches small ones.
mask::MaskData build(const BenchOptions& options, const Mod& mod, std::int64_t tokens) {
    return mask::build(mask::MaskFunction::of("bench", mod), options.batch.value_or(1),
                       options.heads.value_or(1), tokens, tokens);
}

}  // namespace

void bench_mask_gpu(const BenchOptions& options, Report& report) {
    const std::int64_t tokens = options.seq_len.value_or(kTokens);
    const Case on_gpu = documents_case(tokens, options.device),
               on_cpu = documents_case(tokens, Device{});
    const std::vector<Variant> variants = {
        timed("tilewright cuda", [&] { build(options, on_gpu.mod, tokens); }),
        timed("tilewright cpu", [&] { build(options, on_cpu.mod, tokens); })};
    const std::vector<double> seconds =
        interleave(variants, {options.least_rounds, 50, options.seconds});
    const mask::MaskData want = build(options, on_cpu.mod, tokens);
    for (std::size_t i = 0; i < variants.size(); ++i) {
        Row row;
        row.ms = seconds[i] * 1e3;
        row.case_name = fmt::format("{} S{}, {:.2f} MB", on_cpu.name, tokens,
                                    static_cast<double>(want.nbytes()) / 1e6);
        row.operation = "build";
        row.impl = variants[i].name;
        if (options.check && i == 0) {
            row.ok = mask::equal(build(options, on_gpu.mod, tokens), want);
            row.error = row.ok ? 0 : 1;
        }
        report.add(std::move(row));
    }
}

void bench_mask(const BenchOptions& options, Report& report) {
    const std::int64_t tokens = options.seq_len.value_or(kTokens);
    const std::int64_t batch = options.batch.value_or(1), heads = options.heads.value_or(1);
    const std::vector<Case> small = cases(std::min(tokens, kCheckedTokens));
    for (const Case& c : cases(tokens)) {
        const std::vector<Variant> variants = {
            timed("tilewright", [&] { build(options, c.mod, tokens); })};
        Row row;
        row.ms = interleave(variants, {options.least_rounds, 50, options.seconds})[0] * 1e3;
        row.case_name =
            fmt::format("{} S{}, {:.2f} MB", c.name, tokens,
                        static_cast<double>(build(options, c.mod, tokens).nbytes()) / 1e6);
        row.operation = "build";
        row.impl = "tilewright";
        if (options.check) {
            const Case& checked = small[report.rows().size()];
            const std::int64_t n = std::min(tokens, kCheckedTokens);
            const auto got =
                mask::to_dense(build(options, checked.mod, n), batch, heads).to_vector<bool>();
            const auto want = create_mask(checked.mod, batch, heads, n, n).to_vector<bool>();
            double wrong = 0;
            for (std::size_t i = 0; i < want.size(); ++i) wrong += got[i] != want[i];
            row.error = wrong;
            row.ok = wrong == 0;
        }
        report.add(std::move(row));
        report.print();
    }
}

}  // namespace tilewright::cli
