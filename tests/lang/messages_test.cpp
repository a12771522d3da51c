// Errors of the language: each names the argument, what was expected, what was given and the line.
#include "tests/lang/trace_support.h"

namespace tilewright::lang {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

/// `text`, followed by a line of this file.
auto at_this_file(const std::string& text) {
    return AllOf(StartsWith(text + " (at "), HasSubstr("messages_test.cpp:"), EndsWith(")"));
}

TEST(Messages, OfIndexMaps) {
    const auto error = [](auto index_map) {
        return error_of([&] { traced({input(f32, {8}, {{4}, index_map})}, [](Ref) {}, {2}); });
    };
    EXPECT_THAT(error([](auto) { return block(1.5); }),
                at_this_file("[call] expected index 0 of the index map of `x` of kernel `test` to "
                             "be an integer scalar but got f32"));
    EXPECT_THAT(error([](auto) { return block(iota(4)); }), HasSubstr("but got i32[4] (at "));
    EXPECT_THAT(error([](auto, auto) { return block(0); }),
                at_this_file("[call] expected the index map of `x` of kernel `test` to take 1 "
                             "indices (one per grid axis) but it takes 2"));
    EXPECT_THAT(error([](auto i, auto... more) { return block(i, more...); }), "");
    EXPECT_THAT(error([](auto, auto, auto...) { return block(0); }),
                HasSubstr("expected a kernel or index map that takes 1 arguments"));
}

TEST(Messages, OfSpecsOfOutputs) {
    EXPECT_THAT(
        error_of([] { traced({output(f32, {8}, BlockSpec::absent())}, [](Ref) {}); }),
        at_this_file("[call] expected a block of output `z` of kernel `test` but its spec is "
                     "absent; only inputs may be left out"));
}

TEST(Messages, OfIndices) {
    with_input([](Ref x) {
        const char* const scalar =
            "[at] expected the index in dimension 0 of `x` to be an integer scalar but got f32";
        EXPECT_THAT(error_of([&] { x.at(1.0); }), at_this_file(scalar));
        EXPECT_THAT(error_of([&] { x.at(ds(1.0, 2)); }), at_this_file(scalar));
        const char* const empty =
            "[at] expected an index in dimension 0 of `x` but got an empty RefIndex; tw::all is "
            "the whole dimension";
        EXPECT_THAT(error_of([&] { x.at(RefIndex()); }), at_this_file(empty));
        EXPECT_THAT(error_of([&] { x.at({}, 3); }), at_this_file(empty));
        EXPECT_EQ(x.at(all, {}).shape(), (Extents{8, 16}));
        EXPECT_THAT(error_of([&] { x.at(iota(3), iota(4)); }),
                    at_this_file("[at] expected index tiles of `x` that broadcast together but got "
                                 "[3] and [4]"));
        EXPECT_THAT(error_of([&] { x.at(UINT64_MAX); }),
                    StartsWith("[at] expected a value of i64"));
        EXPECT_THAT(error_of([&] { x.at(ds(INT64_MAX, 2)); }),
                    HasSubstr("expected elements inside dimension 0 of `x` (extent 8)"));
        const Tile start = x.at(0, 0).load().to(i64);
        const char* const slice =
            "[at] expected a slice of size >= 0 and stride >= 1, of at most 2^40 elements from end "
            "to end, in dimension 0 of `x` but got size 2 and stride ";
        constexpr std::int64_t kFar = std::int64_t{1} << 35;
        EXPECT_THAT(error_of([&] { x.at(ds(start, 2, INT64_MAX)); }),
                    StartsWith(slice + std::to_string(INT64_MAX)));
        EXPECT_THAT(error_of([&] { x.at(ds(start, 2, kFar)).at(ds(start, 2, kFar)); }),
                    StartsWith(slice + std::to_string(kFar) + " of a view of stride"));
    });
}

TEST(Messages, NameTheFunction) {
    with_input([](Ref x) {
        const Tile t = x.load();
        EXPECT_THAT(error_of([&] { when(t > 0, [] {}); }),
                    at_this_file("[when] expected a bool scalar condition but got bool[8, 16]"));
        EXPECT_THAT(error_of([&] { any(t); }),
                    at_this_file("[any] expected a bool tile but got f32"));
        EXPECT_THAT(error_of([&] { reshape(t, {-1}); }),
                    at_this_file("[reshape] expected a shape of at most 8 extents >= 0 but got "
                                 "[-1]"));
        EXPECT_THAT(error_of([&] { broadcast_to(t, {}); }),
                    at_this_file("[broadcast_to] expected a shape that broadcasts to [] but got "
                                 "[8, 16]"));
        EXPECT_THAT(
            error_of([&] { uniform(iota(3), iota(8)); }),
            at_this_file("[uniform] expected `seed` to be an integer scalar but got i32[3]"));
        EXPECT_THAT(error_of([&] { random_bits(1, t); }),
                    at_this_file("[random_bits] expected `counter` to be integers but got f32"));
        EXPECT_THAT(error_of([&] { iota(4, u8) + 300; }),
                    at_this_file("[add] expected a value of u8 but got 300, which does not fit"));
    });
}

TEST(Messages, OfLoadsAndStores) {
    traced({input(i32, {8}), output(u8, {8})}, [](Ref x, Ref z) {
        const Tile short_mask = iota(4) < 2;
        EXPECT_THAT(error_of([&] { x.load({.other = 1.5}); }),
                    at_this_file("[load] expected `other` of i32 for `x` but got 1.5"));
        EXPECT_THAT(error_of([&] { x.load({.other = zeros({8}, f32)}); }),
                    at_this_file("[load] expected `other` of i32 for `x` but got f32"));
        EXPECT_THAT(error_of([&] { x.load({.other = iota(3)}); }),
                    at_this_file("[load] expected `other` of a shape that broadcasts to [8] for "
                                 "`x` but got [3]"));
        EXPECT_THAT(error_of([&] { x.load({.mask = short_mask}); }),
                    at_this_file("[load] expected a mask of a shape that broadcasts to [8] for "
                                 "`x` but got [4]"));
        EXPECT_THAT(error_of([&] { z.store(1, {.mask = short_mask}); }),
                    at_this_file("[store] expected a mask of a shape that broadcasts to [8] for "
                                 "`z` but got [4]"));
        EXPECT_THAT(error_of([&] { z.store(1, {.mask = 1}); }),
                    at_this_file("[store] expected a bool mask for `z` but got i32"));
        EXPECT_THAT(error_of([&] { z.store(300); }),
                    at_this_file("[store] expected a value of u8 for `z` but got 300"));
        EXPECT_THAT(error_of([&] { z.atomic_add(-1); }),
                    at_this_file("[atomic_add] expected a value of u8 for `z` but got -1"));
        x.load({.other = 2.0});
        z.store(255);
    });
}

TEST(Messages, OfHandlesOfOtherTraces) {
    Ref ref;
    Tile tile;
    with_input([&](Ref x) {
        ref = x;
        tile = x.load();
    });
    with_input([&](Ref) {
        const char* const other = "but got one of another trace";
        EXPECT_THAT(error_of([&] { ref.load(); }),
                    at_this_file(std::string("[load] expected a Ref of kernel `test` ") + other));
        EXPECT_THAT(error_of([&] { ref.shape(); }), HasSubstr("messages_test.cpp:"));
        EXPECT_THAT(
            error_of([&] { tile.dtype(); }),
            at_this_file(std::string("[dtype] expected a value of kernel `test` ") + other));
        EXPECT_THAT(error_of([&] { Ref().present(); }),
                    at_this_file("[present] expected a Ref of kernel `test` but got an empty one"));
        EXPECT_THAT(error_of([&] { Tile().size(); }),
                    at_this_file("[size] expected a value of kernel `test` but got an empty Tile"));
    });
    EXPECT_THAT(error_of([&] { ref.load(); }),
                at_this_file("[load] expected to be called inside a kernel while it is traced"));
    EXPECT_THAT(error_of([&] { tile + 1; }), HasSubstr("messages_test.cpp:"));
}

TEST(Messages, OfParameterNames) {
    const auto error = [](std::vector<std::string> names) {
        return error_of([&] { kernel("k", std::move(names), [](Ref, Ref) {}); });
    };
    EXPECT_THAT(error({"x"}),
                at_this_file("[kernel] expected a name for each of the 2 Refs of kernel `k` but "
                             "got 1"));
    EXPECT_THAT(error({"x", "x"}),
                at_this_file("[kernel] expected the Refs of kernel `k` to have names of their own "
                             "but got `x`, `x`"));
    EXPECT_THAT(error({"x", ""}), HasSubstr("but got `x`, ``"));
    EXPECT_EQ(error({"x", "y"}), "");
    const auto any = [](std::span<const Ref>) {};
    EXPECT_THAT(error_of([&] {
                    Signature signature;
                    signature.parameters = {input(f32, {8}), output(f32, {8})};
                    trace(kernel("k", {"x"}, any), signature);
                }),
                HasSubstr("expected 1 Refs for kernel `k`, as many as it has names, but got 2"));
    EXPECT_THAT(error_of([&] {
                    Signature signature;
                    signature.parameters = {input(f32, {8}), output(f32, {8})};
                    trace(kernel("k", std::function<void(Ref, Ref)>()), signature);
                }),
                HasSubstr("expected kernel `k` to have a body"));
}

TEST(Messages, OfCarriesNameTheLoop) {
    with_input([](Ref x) {
        const int line = __LINE__ + 2;
        const auto grows = [&] {
            for_loop(0, 4, 0.0, [&](auto, auto sum) {
                return sum + x.load();  // not the line of the error
            });
        };
        EXPECT_THAT(error_of(grows), EndsWith("messages_test.cpp:" + std::to_string(line) + ")"));
        EXPECT_THAT(error_of([&] { for_loop(0, 1.5, [](auto) {}); }),
                    at_this_file("[for_loop] expected `high` to be an integer scalar but got f32"));
        EXPECT_THAT(error_of([&] { for_loop(0, 4, 0.5, [](auto i, auto) { return i; }); }),
                    HasSubstr("expected carry 0 to stay f32 but the body returns i64"));
    });
}

}  // namespace
}  // namespace tilewright::lang
