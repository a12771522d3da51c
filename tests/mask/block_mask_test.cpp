// The public BlockMask: block-level view, index form, parts, combinations, pictures, bad input.
#include "mask/block_mask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>
#include <sstream>

#include "tests/mask/random_mask.h"
#include "tests/support/throws.h"
#include "tilewright/error.h"
#include "tilewright/lang.h"
#include "tilewright/masks.h"
#include "tilewright/run.h"

namespace tilewright {
namespace {

using ::testing::HasSubstr;
using testing::random_dense_mask;
using testing::throws;
using ::testing::ThrowsMessage;

/// The block level by its definition: 2 full, 1 partial, 0 empty.
std::vector<int> kinds(const Tensor& dense, BlockSize size) {
    std::vector<int> result;
    const auto* bytes = static_cast<const unsigned char*>(dense.raw());
    const std::int64_t q_len = dense.dim(2), kv_len = dense.dim(3);
    for (std::int64_t head = 0; head < dense.dim(0) * dense.dim(1); ++head) {
        for (std::int64_t q = 0; q < q_len; q += size.q) {
            for (std::int64_t kv = 0; kv < kv_len; kv += size.kv) {
                std::int64_t count = 0;
                for (std::int64_t i = q; i < std::min(q + size.q, q_len); ++i) {
                    for (std::int64_t j = kv; j < std::min(kv + size.kv, kv_len); ++j)
                        count += bytes[(head * q_len + i) * kv_len + j];
                }
                result.push_back(count == 0 ? 0 : count == size.q * size.kv ? 2 : 1);
            }
        }
    }
    return result;
}

std::vector<int> kinds(const BlockMask& mask) {
    const Tensor dense = mask.to_dense();
    std::vector<int> result(static_cast<std::size_t>(dense.size()));
    const auto mark = [&](const BlockLists& lists, int kind, bool by_column) {
        const auto counts = lists.num_blocks.to_vector<std::int64_t>();
        const auto indices = lists.indices.to_vector<std::int64_t>();
        const std::int64_t rows = dense.dim(2), columns = dense.dim(3);
        const std::int64_t lines = by_column ? columns : rows, length = by_column ? rows : columns;
        for (std::size_t line = 0; line < counts.size(); ++line) {
            const auto n = static_cast<std::int64_t>(line);
            for (std::int64_t i = 0; i < counts[line]; ++i) {
                const std::int64_t other = indices[static_cast<std::size_t>(n * length + i)];
                const std::int64_t row = by_column ? other : n % lines,
                                   column = by_column ? n % lines : other;
                int& cell =
                    result[static_cast<std::size_t>((n / lines * rows + row) * columns + column)];
                if (by_column) {
                    EXPECT_EQ(cell, kind);
                } else {
                    EXPECT_EQ(cell, 0);
                }
                cell = kind;
            }
        }
        return 0;
    };
    mark(mask.kv_blocks(), 1, false);
    mark(mask.full_kv_blocks(), 2, false);
    mark(mask.q_blocks(), 1, true);
    mark(mask.full_q_blocks(), 2, true);
    std::vector<int> visited = dense.to_vector<int>();
    for (std::size_t i = 0; i < result.size(); ++i) EXPECT_EQ(visited[i], result[i] > 0);
    return result;
}

TEST(BlockMask, BlocksOfAnySize) {
    const BlockSize sizes[] = {64, 128, {64, 192}, {1, 1}, {48, 100}, {7, 130}, {1000, 5000}};
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
        const Tensor dense =
            random_dense_mask(seed, 1 + seed % 2, 1 + seed % 3, 65 + seed * 7, 300 - seed * 8);
        for (const BlockSize size : sizes) {
            const BlockMask mask = BlockMask::from_dense(dense, size);
            const std::vector<int> want = kinds(dense, size);
            ASSERT_EQ(kinds(mask), want)
                << "seed " << seed << " block " << size.q << ", " << size.kv;
            const auto empty = static_cast<double>(std::count(want.begin(), want.end(), 0));
            EXPECT_NEAR(mask.sparsity(), 100 * empty / static_cast<double>(want.size()), 1e-9);
        }
    }
}

TEST(BlockMask, BlocksBeyondTheEndArePartialWhereAllPairsAttend) {
    const BlockMask mask = create_block_mask(masks::noop(), 1, 1, 192, 320, 128);
    EXPECT_EQ(kinds(mask), (std::vector<int>{2, 2, 1, 1, 1, 1}));
    EXPECT_EQ(kinds(create_block_mask(masks::noop(), 1, 1, 64, 128, 128)), std::vector<int>{1});
}

TEST(BlockMask, KnowsItsShape) {
    const BlockMask mask = create_block_mask(masks::causal(), 4, 8, 1000, 2000, {64, 32});
    EXPECT_THAT(mask.shape(), ::testing::ElementsAre(4, 8, 1000, 2000));
    EXPECT_THAT(mask.seq_lengths(), ::testing::ElementsAre(1000, 2000));
    EXPECT_EQ(mask.block_size(), BlockSize(64, 32));
    EXPECT_EQ(mask.numel(), 4 * 8 * 1000 * 2000);
    // Causal does not depend on batch and head, so it is stored once for any number of them.
    EXPECT_EQ(mask.nbytes(), create_block_mask(masks::causal(), 1, 1, 1000, 2000).nbytes());
    EXPECT_THAT(mask.kv_blocks().indices.shape(), ::testing::ElementsAre(4, 8, 16, 63));
    EXPECT_TRUE(mask.attends(3, 7, 999, 999));
    EXPECT_FALSE(mask.attends(3, 7, 998, 999));
}

TEST(BlockMask, KeptMasksAreThoseOfTheirShape) {
    // Masks that read no array are cached by heads, batches and lengths, not by their text alone.
    const Mod mod = parse_mod("kv <= q + 3 * h + 5 * b", {}, Mod::Kind::mask);
    const auto expect_all = [&](std::int64_t batch, std::int64_t heads, std::int64_t length) {
        const BlockMask mask = create_block_mask(mod, batch, heads, length, length, 16);
        for (std::int64_t b = 0; b < batch; ++b) {
            for (std::int64_t h = 0; h < heads; ++h) {
                for (std::int64_t kv = 0; kv < length; ++kv)
                    ASSERT_EQ(mask.attends(b, h, 2, kv), kv <= 2 + 3 * h + 5 * b);
            }
        }
    };
    expect_all(1, 2, 40);
    expect_all(1, 4, 40);
    expect_all(3, 2, 40);
    expect_all(1, 2, 48);
    expect_all(1, 2, 40);
}

TEST(BlockMask, IndexFormRoundTrip) {
    const Mod mod = masks::causal() & masks::sliding_window(300);
    const BlockMask mask = create_block_mask(mod, 2, 1, 1000, 1000, {128, 64});
    const BlockLists partial = mask.kv_blocks(), full = mask.full_kv_blocks();
    const BlockMask again = BlockMask::from_kv_blocks(partial.num_blocks, partial.indices,
                                                      full.num_blocks, full.indices, {128, 64}, mod,
                                                      std::array<std::int64_t, 2>{1000, 1000});
    EXPECT_TRUE(again == mask);
    EXPECT_EQ(kinds(again), kinds(mask));
    // Without a mask mod the pairs of partial blocks attend, and the blocks stay partial.
    const BlockMask blocks = BlockMask::from_kv_blocks(partial.num_blocks, partial.indices,
                                                       full.num_blocks, full.indices, {128, 64});
    EXPECT_THAT(blocks.seq_lengths(), ::testing::ElementsAre(1024, 1024));
    EXPECT_EQ(blocks.kv_blocks().num_blocks.to_vector<int>(), partial.num_blocks.to_vector<int>());
    EXPECT_TRUE(blocks.attends(0, 0, 0, 63));
    EXPECT_FALSE(blocks.attends(1, 0, 0, 128));
}

TEST(BlockMask, IndexFormOfOddBlocks) {
    // Block row 0: block 1 partial; block row 1: blocks 0 and 2 full.
    const Tensor num = Tensor::from_vector<int>({1, 0}, {1, 1, 2});
    const Tensor indices = Tensor::from_vector<int>({1, 0, 0, 0, 0, 0}, {1, 1, 2, 3});
    const Tensor full_num = Tensor::from_vector<int>({0, 2}, {1, 1, 2});
    const Tensor full = Tensor::from_vector<int>({0, 0, 0, 2, 0, 0}, {1, 1, 2, 3});
    const Mod mod = [](auto, auto, auto q, auto kv) { return (q + kv) % 2 == 0; };
    const BlockMask mask =
        BlockMask::from_kv_blocks(num, indices, full_num, full, {50, 70}, mod, {{90, 200}});
    for (std::int64_t q = 0; q < 90; ++q) {
        for (std::int64_t kv = 0; kv < 200; ++kv) {
            const bool want = q < 50 ? kv / 70 == 1 && (q + kv) % 2 == 0 : kv / 70 != 1;
            ASSERT_EQ(mask.attends(0, 0, q, kv), want) << q << " " << kv;
        }
    }
}

TEST(BlockMask, PartsAndCombinations) {
    const Mod by_head = [](auto b, auto h, auto q, auto kv) { return q + 10 * b + h >= kv; };
    const BlockMask mask = create_block_mask(by_head, 2, 3, 200, 300);
    const BlockMask part = mask.at(1, -1);
    EXPECT_THAT(part.shape(), ::testing::ElementsAre(1, 1, 200, 300));
    EXPECT_TRUE(part.attends(0, 0, 5, 17));
    EXPECT_FALSE(part.attends(0, 0, 5, 18));
    EXPECT_THAT(mask.at(0).shape(), ::testing::ElementsAre(1, 3, 200, 300));
    const BlockMask heads = mask.part(0, 2, 1, 2);
    EXPECT_THAT(heads.shape(), ::testing::ElementsAre(2, 2, 200, 300));
    EXPECT_TRUE(heads.at(1, 1) == mask.at(1, 2));
    EXPECT_TRUE(mask.at(0, 0).part(1, 4, 2, 8) == mask.at(0, 0));
    EXPECT_THAT(
        [&] { mask.part(1, 2, 0, 3); },
        ThrowsMessage<UserError>(HasSubstr("expected batches inside of 2 but got 2 from 1")));
    const BlockMask rows = mask.q_rows(1, 1);
    EXPECT_THAT(rows.shape(), ::testing::ElementsAre(2, 3, 72, 300));
    EXPECT_TRUE(rows.attends(0, 0, 0, 128));
    EXPECT_FALSE(rows.attends(0, 0, 0, 129));

    const BlockMask window = create_block_mask(masks::sliding_window(20), 1, 1, 200, 300);
    EXPECT_TRUE((mask & window) ==
                create_block_mask(by_head & masks::sliding_window(20), 2, 3, 200, 300));
    EXPECT_TRUE((mask | ~window) ==
                create_block_mask(by_head | ~masks::sliding_window(20), 2, 3, 200, 300));
    EXPECT_FALSE(mask == window);

    // Bottom-right causal is causal seen from later queries.
    const BlockMask causal = create_block_mask(masks::causal(), 1, 1, 300, 300);
    const Mod late = [](auto, auto, auto q, auto kv) { return q + 100 >= kv; };
    EXPECT_TRUE(causal.shifted(100, 0, 200, 300) == create_block_mask(late, 1, 1, 200, 300));
    EXPECT_EQ(mask.elements().to_vector<bool>(),
              create_mask(by_head, 2, 3, 200, 300).to_vector<bool>());
}

TEST(BlockMask, PlansAreKept) {
    const BlockMask mask = create_block_mask(masks::causal(), 1, 1, 512, 512);
    const mask::PlanOptions options{.block_q = 64, .block_kv = 64};
    EXPECT_EQ(mask::plan(mask, options), mask::plan(mask, options));
    EXPECT_NE(mask::plan(mask, options), mask::plan(mask, {.block_q = 128}));
    EXPECT_NO_THROW(mask::check_fits("attention", mask, 4, 8, 512, 512));
    EXPECT_THAT([&] { mask::check_fits("attention", mask, 4, 8, 512, 640); },
                ThrowsMessage<UserError>(HasSubstr(
                    "expected a block mask of 512 queries and 640 keys but got 512 and 512")));
    const Mod by_head = [](auto, auto h, auto q, auto kv) { return q + h >= kv; };
    EXPECT_THAT(
        [&] { mask::check_fits("attention", create_block_mask(by_head, 1, 3, 8, 8), 4, 8, 8, 8); },
        ThrowsMessage<UserError>(HasSubstr("and 8, or 1 of either, but got 1 and 3")));
}

TEST(BlockMask, Prints) {
    const BlockMask mask = create_block_mask(masks::causal(), 1, 1, 512, 512);
    EXPECT_EQ(mask.to_string(),
              "BlockMask(shape=(1, 1, 512, 512), sparsity=37.50%,\n(0, 0)\n"
              "░░      \n██░░    \n████░░  \n██████░░\n)");
    std::ostringstream out;
    out << create_block_mask(masks::causal(), 1, 1, 1 << 14, 1 << 14);
    const std::string text = out.str();
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 22);
}

TEST(BlockMask, Draws) {
    const Mod by_head = [](auto, auto h, auto q, auto kv) { return q + 40 * h >= kv; };
    const BlockMask mask = create_block_mask(by_head, 1, 2, 100, 100);
    EXPECT_THAT(mask.svg(), HasSubstr("<svg xmlns"));
    EXPECT_THAT(mask.svg(), HasSubstr("#265496"));
    const std::string path = ::testing::TempDir() + "mask.png";
    mask.save(path);
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(bytes.substr(0, 8), "\x89PNG\r\n\x1a\n");
    EXPECT_EQ(bytes.substr(bytes.size() - 8, 4), "IEND");
    EXPECT_THAT([&] { mask.save("mask.jpg"); },
                ThrowsMessage<UserError>(HasSubstr("ends in .svg or .png")));
    EXPECT_THAT([&] { mask.save("/no/such/folder/mask.svg"); },
                ThrowsMessage<UserError>(HasSubstr("expected a path that can be written")));
}

TEST(BlockMask, RefusesBadSizes) {
    const Mod causal = masks::causal();
    EXPECT_THAT([&] { create_block_mask(causal, 1, 1, -1, 5); },
                ThrowsMessage<UserError>(HasSubstr("q_len and kv_len")));
    EXPECT_THAT([&] { create_block_mask(causal, 0, 1, 5, 5); },
                ThrowsMessage<UserError>(HasSubstr("at least 1 batch")));
    EXPECT_THAT(
        [&] {
            create_block_mask(causal, 1, 1, 5, 5, {0, 128});
        },
        ThrowsMessage<UserError>(HasSubstr("block sizes of at least 1 but got (0, 128)")));
    EXPECT_THAT([&] { create_block_mask({}, 1, 1, 5, 5); },
                ThrowsMessage<UserError>(HasSubstr("got none")));
    const BlockMask a = create_block_mask(causal, 1, 1, 10, 10);
    EXPECT_THAT([&] { a& create_block_mask(causal, 1, 1, 10, 11); },
                ThrowsMessage<UserError>(HasSubstr("equal lengths")));
    EXPECT_THAT(
        [&] { create_block_mask(causal, 2, 1, 9, 9) | create_block_mask(causal, 3, 1, 9, 9); },
        ThrowsMessage<UserError>(HasSubstr("equal or 1")));
    EXPECT_THAT([&] { a.at(1); }, ThrowsMessage<UserError>(HasSubstr("batch of -1 to 0")));
    EXPECT_THAT([&] { a.select({}, {0}); }, ThrowsMessage<UserError>(HasSubstr("at least one")));
    EXPECT_THAT([&] { a.q_rows(0, 2); }, ThrowsMessage<UserError>(HasSubstr("rows within")));
    EXPECT_THAT([] { BlockMask().sparsity(); }, ThrowsMessage<UserError>(HasSubstr("got none")));
    EXPECT_THAT(
        [] {
            BlockMask::from_dense(Tensor::zeros(f32, {1, 1, 2, 2}));
        },
        ThrowsMessage<UserError>(HasSubstr("bool (B, H, Q, KV)")));
}

TEST(BlockMask, RefusesMalformedIndexForm) {
    const auto lists = [](int count, int first, int second) {
        return std::pair{Tensor::from_vector<int>({count}, {1, 1, 1}),
                         Tensor::from_vector<int>({first, second}, {1, 1, 1, 2})};
    };
    const auto make = [&](auto kv, auto full) {
        return BlockMask::from_kv_blocks(kv.first, kv.second, full.first, full.second);
    };
    EXPECT_NO_THROW(make(lists(1, 0, 0), lists(1, 1, 0)));
    EXPECT_THAT([&] { make(lists(3, 0, 1), lists(0, 0, 0)); },
                ThrowsMessage<UserError>(HasSubstr("kv_num_blocks of 0 to 2 but row 0 has 3")));
    EXPECT_THAT(
        [&] { make(lists(1, 5, 0), lists(0, 0, 0)); },
        ThrowsMessage<UserError>(HasSubstr("kv_indices of 0 to 1 but row 0 names block 5")));
    EXPECT_THAT([&] { make(lists(1, 0, 0), lists(1, 0, 0)); },
                ThrowsMessage<UserError>(HasSubstr("block 0 twice")));
    const auto one = lists(1, 0, 0);
    const auto from = [&](const Tensor& indices, std::int64_t kv_len) {
        BlockMask::from_kv_blocks(one.first, indices, {}, {}, 128, {},
                                  std::array<std::int64_t, 2>{128, kv_len});
    };
    EXPECT_THAT([&] { from({}, 256); },
                ThrowsMessage<UserError>(HasSubstr("kv_indices (B, H, rows, columns)")));
    EXPECT_THAT(
        [&] {
            from(Tensor::zeros(i32, {1, 1, 2, 2}), 256);
        },
        ThrowsMessage<UserError>(HasSubstr("equal (B, H, rows)")));
    EXPECT_THAT([&] { from(one.second, 100); },
                ThrowsMessage<UserError>(HasSubstr("expected lengths of 1 x 2 blocks")));
    const auto two = Tensor::from_vector<int>({1, 1}, {1, 1, 2});
    EXPECT_THAT(
        [&] {
            make(lists(1, 0, 0), std::pair{two, Tensor::zeros(i32, {1, 1, 2, 1})});
        },
        ThrowsMessage<UserError>(HasSubstr("full_kv_num_blocks of the shape of kv_num_blocks")));
}

TEST(BlockMask, ListsAreAsWideAsTheyNeed) {
    const auto list = [](std::initializer_list<int> counts, std::initializer_list<int> indices) {
        const auto rows = static_cast<std::int64_t>(counts.size());
        return std::pair{
            Tensor::from_vector<int>(counts, {1, 1, rows}),
            Tensor::from_vector<int>(indices, {1, 1, rows, std::ssize(indices) / rows})};
    };
    const auto [num, indices] = list({1, 1, 1}, {0, 1, 2});
    const auto [full_num, full_indices] = list({0, 1, 2}, {0, 0, 0, 0, 0, 1});
    const std::array<std::int64_t, 2> lengths{96, 160};
    const BlockMask mask =
        BlockMask::from_kv_blocks(num, indices, full_num, full_indices, {32, 32}, {}, lengths);
    EXPECT_EQ(mask.shape(), (std::array<std::int64_t, 4>{1, 1, 96, 160}));
    EXPECT_EQ(mask.to_dense().to_vector<int>(),
              (std::vector<int>{1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0}));
    EXPECT_THAT(
        [&] {
            BlockMask::from_kv_blocks(num, indices, {}, {}, {32, 32});
        },
        ThrowsMessage<UserError>(HasSubstr("kv_indices of 0 to 0 but row 1 names block 1")));
}

TEST(BlockMask, PackedAndBack) {
    std::vector<BlockMask> cases{create_block_mask(masks::causal(), 2, 3, 200, 300, {64, 32}),
                                 create_block_mask(masks::causal(), 1, 1, 0, 5),
                                 BlockMask::from_dense(random_dense_mask(3, 2, 2, 130, 200)),
                                 ~BlockMask::from_dense(random_dense_mask(4, 1, 2, 65, 64))};
    cases.push_back(cases[0] & ~create_block_mask(masks::sliding_window(20), 1, 1, 200, 300));
    for (const BlockMask& mask : cases) {
        const Tensor words = mask.packed();
        const BlockMask again = BlockMask::from_packed(words);
        EXPECT_EQ(again.shape(), mask.shape());
        EXPECT_EQ(again.block_size(), mask.block_size());
        EXPECT_TRUE(again == mask);
        EXPECT_EQ(again.packed().to_vector<std::uint32_t>(), words.to_vector<std::uint32_t>());
    }
}

TEST(BlockMask, WordsThatAreNoMaskAreRefused) {
    const BlockMask mask = BlockMask::from_dense(random_dense_mask(5, 2, 1, 130, 200));
    const std::vector<std::uint32_t> words = mask.packed().to_vector<std::uint32_t>();
    const auto read = [](const std::vector<std::uint32_t>& values) {
        return BlockMask::from_packed(
            Tensor::from_vector(values, {static_cast<std::int64_t>(values.size())}));
    };
    EXPECT_THAT([&] { read({}); }, throws("but got too few of them"));
    EXPECT_THAT([&] { read({words.begin(), words.end() - 1}); }, throws("but got too few of them"));
    EXPECT_THAT([&] { BlockMask::from_packed(Tensor::zeros(DType::i32, {4})); },
                throws("expected words of u32 (n) but got i32[4]"));
    // Any change of one word gives a mask or is refused.
    int refused = 0;
    for (std::size_t i = 0; i < std::min<std::size_t>(words.size(), 200); ++i) {
        for (const std::uint32_t value : {0U, 0xffffffffU, words[i] + 1, words[i] ^ 0x80000000U}) {
            std::vector<std::uint32_t> changed = words;
            changed[i] = value;
            try {
                read(changed);
            } catch (const UserError&) {
                ++refused;
            }
        }
    }
    EXPECT_GT(refused, 100);
}

TEST(BlockMask, CheckedModeNamesTheIndexOutside) {
    const Capture ids = capture(Tensor::zeros(i32, {100}), "ids");
    const Mod reads = [ids](auto, auto, auto q, auto kv) { return ids[q] == ids[kv + 1]; };
    const Mod rows = [ids](auto, auto, auto q, auto) { return ids[q] == 0; };
    const Mod score = [ids](auto s, auto, auto h, auto, auto) { return s + ids[200 * h]; };
    EXPECT_TRUE(create_block_mask(reads, 1, 1, 100, 100) ==
                create_block_mask(reads, 1, 1, 100, 100));
    set_checked(true);
    const auto message = [](auto&& call) -> std::string {
        try {
            call();
        } catch (const UserError& error) {
            return error.what();
        }
        return "no error";
    };
    const std::string built = message([&] { create_block_mask(rows, 1, 1, 300, 100); }),
                      second = message([&] { create_block_mask(reads, 1, 1, 90, 100); }),
                      dense = message([&] { create_mask(score, 2, 2, 3, 5); });
    // Reads in bounds, and reads that the library guards, are accepted.
    create_block_mask(reads, 1, 1, 100, 99);
    create_mask(score, 2, 1, 3, 5);
    const Capture offsets = capture(Tensor::from_vector(std::vector<std::int32_t>{0, 20, 50}, {3}));
    create_block_mask(masks::jagged(masks::causal(), offsets), 1, 1, 100, 100);
    create_block_mask(masks::tree(capture(Tensor::zeros(boolean, {8, 8})), 5), 1, 1, 8, 20);
    set_checked(false);
    EXPECT_THAT(built,
                HasSubstr("[create_block_mask] expected that index of dimension 0 of capture "
                          "`ids` is inside its extent but it is not for b 0, h 0, q 100, kv 0"));
    EXPECT_THAT(second, HasSubstr("b 0, h 0, q 0, kv 99"));
    EXPECT_THAT(dense, HasSubstr("[create_mask] expected that index"));
    EXPECT_THAT(dense, HasSubstr("b 0, h 1, q 0, kv 0"));
}

}  // namespace
}  // namespace tilewright
