// Uses of buffers, and how patterns over chains change them.
#include "cpu/def_use.h"

#include <gtest/gtest.h>

#include <utility>

namespace tilewright::cpu {
namespace {

StripSource buffer(std::uint32_t index) {
    StripSource source;
    source.home = Home::buffer;
    source.index = index;
    source.lane_stride = 1;
    return source;
}

StripOp op_of(std::uint32_t out, std::initializer_list<std::uint32_t> in) {
    StripOp op;
    op.function = [](const Strip&) {};
    for (const std::uint32_t index : in) {
        op.in[static_cast<std::size_t>(op.num_inputs++)] = buffer(index);
    }
    op.out = buffer(out);
    return op;
}

/// Buffer 2 = f(0, 1), 3 = f(2, 2), 4 = f(3, 0).
Region region_of_three() {
    Chain chain;
    chain.ops = {op_of(2, {0, 1}), op_of(3, {2, 2}), op_of(4, {3, 0})};
    Region region(1);
    region[0].instruction = std::move(chain);
    return region;
}

TEST(DefUse, CountsOperandsOfTheWholeRegion) {
    Region region = region_of_three();
    Node loop;
    loop.kind = Node::Kind::for_loop;
    loop.regions.push_back(region_of_three());
    region.push_back(std::move(loop));
    const DefUse uses(region);
    EXPECT_EQ(uses.chains().size(), 2U);
    EXPECT_EQ(uses.uses(0), 4);
    EXPECT_EQ(uses.uses(2), 4);
    EXPECT_EQ(uses.uses(4), 0);
    EXPECT_EQ(uses.writes(4), 2);
    EXPECT_EQ(uses.writes(0), 0);
}

TEST(DefUse, TheMakerOfWhatIsReadTwiceIsNobodysAlone) {
    Region region = region_of_three();
    const DefUse uses(region);
    Chain& chain = *uses.chains().at(0);
    EXPECT_EQ(uses.sole_maker(chain, buffer(2)), nullptr);
    EXPECT_EQ(uses.sole_maker(chain, buffer(3)), &chain.ops[1]);
    EXPECT_EQ(uses.sole_maker(chain, buffer(0)), nullptr);
}

TEST(DefUse, ReplacingRemovingAndAddingKeepsTheCounts) {
    Region region = region_of_three();
    DefUse uses(region);
    Chain& chain = *uses.chains().at(0);
    uses.replace(chain.ops[2], op_of(4, {2, 1}));
    uses.remove(chain.ops[1]);
    uses.add(chain, 3, op_of(5, {4}));
    uses.sweep();
    ASSERT_EQ(chain.ops.size(), 3U);
    EXPECT_EQ(chain.ops[2].out.index, 5U);
    const DefUse counted(region);
    for (std::uint32_t index = 0; index < 6; ++index) {
        EXPECT_EQ(uses.uses(index), counted.uses(index)) << index;
        EXPECT_EQ(uses.writes(index), counted.writes(index)) << index;
    }
}

}  // namespace
}  // namespace tilewright::cpu
