// The layout algebra against brute force over every register, lane and warp.
#include "cuda/codegen/layout.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <set>

#include "cuda/codegen/dot_plan.h"
#include "cuda/codegen/mma_fragments.h"
#include "ir/builder.h"

namespace tilewright::cuda {
namespace {

Coordinates place(const Layout& layout, int reg, int lane, int warp) {
    Coordinates at = layout.register_coordinates(reg);
    const Coordinates thread = layout.thread_coordinates(lane, warp);
    for (std::size_t axis = 0; axis < at.size(); ++axis) {
        // Repeats add, bits xor; they never overlap.
        at[axis] = at[axis] + thread[axis];
    }
    return at;
}

/// A layout that assigns the coordinates' bits to registers, lanes and warps at random.
Layout random_layout(const ir::Shape& shape, int warps, std::mt19937& random) {
    Layout layout(shape, warps);
    std::vector<std::uint64_t> bits;
    for (int axis = 0; axis < shape.rank(); ++axis) {
        for (int bit = 0; bit < cover(shape[axis]).bits; ++bit) {
            bits.push_back(layout.basis(axis, bit));
        }
    }
    std::shuffle(bits.begin(), bits.end(), random);
    for (auto* bases : {&layout.lane, &layout.warp}) {
        for (std::uint64_t& basis : *bases) {
            if (bits.empty() || random() % 5 == 0) continue;
            basis = bits.back();
            bits.pop_back();
        }
    }
    layout.reg = bits;
    return layout;
}

const std::vector<ir::Shape> kShapes = {{},        {1},       {7},          {32},       {96},
                                        {100},     {1024},    {16, 16},     {64, 96},   {80, 128},
                                        {3, 5, 8}, {48, 1},   {2, 16, 48},  {128, 176}, {0, 4},
                                        {1, 64},   {2, 3, 4}, {4, 4, 4, 4}, {112, 8},   {33, 2}};

TEST(Layout, CoversEveryElement) {
    std::mt19937 random(1);
    for (const ir::Shape& shape : kShapes) {
        for (int warps : {1, 2, 4, 8}) {
            for (const Layout& layout :
                 {blocked(shape, warps, 4), random_layout(shape, warps, random)}) {
                std::set<Coordinates> seen;
                for (int reg = 0; reg < layout.registers(); ++reg) {
                    EXPECT_EQ(layout.find_register(layout.register_coordinates(reg)), reg);
                    for (int lane = 0; lane < 32; ++lane) {
                        for (int warp = 0; warp < warps; ++warp) {
                            seen.insert(place(layout, reg, lane, warp));
                        }
                    }
                }
                std::int64_t covered = 1;
                for (std::int64_t extent : shape.dims()) covered *= cover(extent).size();
                EXPECT_EQ(static_cast<std::int64_t>(seen.size()), covered) << layout.to_string();
            }
        }
    }
}

TEST(Layout, ConversionsBringEveryElementToItsPlace) {
    std::mt19937 random(2);
    int kinds[3] = {};
    for (const ir::Shape& shape : kShapes) {
        for (int warps : {1, 4}) {
            for (int round = 0; round < 24; ++round) {
                const Layout from = random_layout(shape, warps, random);
                Layout to = round % 3 == 0 ? random_layout(shape, warps, random) : from;
                if (round % 3 == 1) std::shuffle(to.reg.begin(), to.reg.end(), random);
                if (round % 3 == 2) {
                    std::swap(to.lane[random() % 5], to.lane[random() % 5]);
                    if (!to.reg.empty())
                        std::swap(to.lane[random() % 5], to.reg[random() % to.reg.size()]);
                    to.reg.erase(std::remove(to.reg.begin(), to.reg.end(), 0), to.reg.end());
                }
                const Conversion how = conversion(from, to);
                ++kinds[static_cast<int>(how.kind)];
                if (how.kind == Conversion::Kind::shared) continue;
                for (int reg = 0; reg < to.registers(); ++reg) {
                    for (int lane = 0; lane < 32; ++lane) {
                        for (int warp = 0; warp < warps; ++warp) {
                            const auto r = static_cast<std::size_t>(reg);
                            int source = how.source[r], source_lane = lane;
                            if (how.kind == Conversion::Kind::shuffle) {
                                const bool odd =
                                    std::popcount(static_cast<unsigned>(lane) & how.select_lanes) %
                                    2;
                                if (odd) source = how.alternative[r];
                                unsigned mapped = how.flip[r];
                                for (std::size_t bit = 0; bit < 5; ++bit) {
                                    if ((lane >> bit & 1) != 0) mapped ^= how.lane_map[bit];
                                }
                                source_lane = static_cast<int>(mapped);
                            }
                            ASSERT_EQ(place(from, source, source_lane, warp),
                                      place(to, reg, lane, warp))
                                << from.to_string() << " to " << to.to_string();
                        }
                    }
                }
            }
        }
    }
    for (int kind : kinds) EXPECT_GT(kind, 20);
}

TEST(Layout, RelatedTilesKeepElementsInTheirThreads) {
    std::mt19937 random(3);
    for (const ir::Shape& shape : kShapes) {
        if (shape.rank() == 0) continue;
        const Layout layout = random_layout(shape, 4, random);
        for (int axis = 0; axis < shape.rank(); ++axis) {
            const Layout less = layout.without(axis);
            const Layout more = shape.rank() < 4 ? layout.with_inserted(axis) : layout;
            for (int lane = 0; lane < 32; ++lane) {
                for (int warp = 0; warp < 4; ++warp) {
                    const Coordinates at = layout.thread_coordinates(lane, warp);
                    Coordinates dropped{}, inserted{};
                    for (int a = 0, to = 0; a < shape.rank(); ++a) {
                        const std::int64_t value = at[static_cast<std::size_t>(a)];
                        if (a != axis) dropped[static_cast<std::size_t>(to++)] = value;
                        if (shape.rank() < 4) {
                            inserted[static_cast<std::size_t>(a < axis ? a : a + 1)] = value;
                        }
                    }
                    EXPECT_EQ(less.thread_coordinates(lane, warp), dropped);
                    if (shape.rank() < 4) {
                        EXPECT_EQ(more.thread_coordinates(lane, warp), inserted);
                    }
                }
            }
        }
    }
}

/// The fragment tables of the PTX ISA for mma.m16n8k16: lane group g, lane in group t.
TEST(Layout, FragmentsAreThoseOfThePtxIsa) {
    ir::Function function;
    ir::Builder builder(function);
    const ir::Value a = builder.constant({DType::bf16, {64, 32}}, 0),
                    b = builder.constant({DType::bf16, {32, 64}}, 0);
    builder.dot(a, b);
    const DotPlan plan = plan_dot(function, function.body.body.back(), 4, true);
    ASSERT_EQ(plan.unit, DotPlan::Unit::mma16);
    EXPECT_TRUE(holds_sums(plan.accumulator, mma_unit(DType::bf16)));
    EXPECT_FALSE(holds_sums(blocked(ir::Shape{64, 64}, 4, 2), mma_unit(DType::bf16)));
    const Layout right_operand = right_fragments(plan.accumulator, DType::bf16, plan.k);
    for (int warp = 0; warp < 4; ++warp) {
        for (int lane = 0; lane < 32; ++lane) {
            const int g = lane / 4, t = lane % 4;
            for (int i = 0; i < 8; ++i) {
                const Coordinates at = place(plan.a, i, lane, warp);
                EXPECT_EQ(at[0], 16 * warp + g + i / 2 % 2 * 8);
                EXPECT_EQ(at[1], 2 * t + i % 2 + i / 4 * 8);
            }
            for (int i = 0; i < 4; ++i) {
                const Coordinates at = place(plan.accumulator, i, lane, warp);
                EXPECT_EQ(at[0], 16 * warp + g + i / 2 * 8);
                EXPECT_EQ(at[1], 2 * t + i % 2);
                const Coordinates right = place(right_operand, i, lane, warp);
                EXPECT_EQ(right[0], 2 * t + i % 2 + i / 2 * 8);
                EXPECT_EQ(right[1], g);
            }
        }
    }
    // An accumulator becomes the left operand of the next product without moving data.
    Layout operand = plan.a;
    Layout accumulator(ir::Shape{64, 32}, 4);
    const ir::Value c = builder.constant({DType::bf16, {32, 32}}, 0);
    builder.dot(a, c);
    accumulator = plan_dot(function, function.body.body.back(), 4, true).accumulator;
    EXPECT_EQ(conversion(accumulator, operand).kind, Conversion::Kind::relabel);
}

}  // namespace
}  // namespace tilewright::cuda
