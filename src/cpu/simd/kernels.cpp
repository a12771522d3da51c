// Chooses the kernel table of this machine.
#include "cpu/simd/kernels.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "cpu/simd/dot_products.h"
#include "cpu/simd/run_compiler.h"
#include "cpu/simd/scalar.h"
#include "cpu/simd/vector.h"
#include "hwy/targets.h"
#include "support/check.h"

namespace tilewright::cpu {
namespace {

const Kernels& scalar_kernels() {
    static const Kernels table = {
        .name = "scalar",
        .vector_bytes = 8,
        .elementwise = scalar_elementwise,
        .reduce_rows = scalar_reduce_rows,
        .reduce_lanes = scalar_reduce_lanes,
        .scan_rows = scalar_scan_rows,
        .scan_lanes = scalar_scan_lanes,
        .arg_reduce_rows = scalar_arg_reduce_rows,
        .arg_reduce_lanes = scalar_arg_reduce_lanes,
        .sort = scalar_sort,
        .gemm_f32 = scalar_gemm_f32,
        .gemm_f64 = scalar_gemm_f64,
        .gemm_i32 = scalar_gemm_i32,
        .gemm_i64 = scalar_gemm_i64,
        .gemm_bf16_pairs = scalar_gemm_bf16_pairs,
        .gemm_i16_pairs = scalar_gemm_i16_pairs,
        .gemm_i8_quads = scalar_gemm_i8_quads,
        .store = scalar_store,
        .stream = [](DType dtype) { return scalar_store(dtype, false); },
        .interleave_pairs = scalar_interleave_pairs,
        .interleave_quads = scalar_interleave_quads,
        .transpose = scalar_transpose,
        .super = scalar_superinstructions(),
        .fused = {},
    };
    return table;
}

template <Target target>
StripFunction elementwise(ir::Op op, DType in, DType out, bool approx) {
    // Ops without a scalar kernel do not exist.
    const StripFunction scalar = scalar_elementwise(op, in, out, approx);
    if (scalar == nullptr) return nullptr;
    StripFunction f = nullptr;
    if (op == ir::Op::cast) {
        f = vector_cast(target, in, out);
    } else if (op != ir::Op::bitcast) {
        f = vector_unary(target, op, in);
        if (f == nullptr) f = vector_binary(target, op, in);
        if (f == nullptr) f = vector_ternary(target, op, in);
    }
    return f != nullptr ? f : scalar;
}

bool shares_slices(std::span<const FusedShape> shapes) {
    return std::any_of(shapes.begin(), shapes.end(), [](const FusedShape& shape) {
        return std::any_of(shape.place.begin(), shape.place.end(),
                           [](const FusedPlace& place) { return place.shift > 0; });
    });
}

// The table of a vector target: its own kernels where it has them, the scalar ones elsewhere.
template <Target target>
Kernels vector_kernels(std::string_view name, int vector_bytes) {
    Kernels k = scalar_kernels();
    k.name = name;
    k.vector_bytes = vector_bytes;
    k.elementwise = elementwise<target>;
    k.reduce_rows = [](ir::Reduction kind, DType dtype) {
        const StripFunction f = vector_reduce_rows(target, kind, dtype);
        return f != nullptr ? f : scalar_reduce_rows(kind, dtype);
    };
    k.reduce_lanes = [](ir::Reduction kind, DType dtype) {
        const StripFunction f = vector_reduce_lanes(target, kind, dtype);
        return f != nullptr ? f : scalar_reduce_lanes(kind, dtype);
    };
    k.scan_rows = [](ir::Reduction kind, DType dtype) {
        const StripFunction f = vector_scan_rows(target, kind, dtype);
        return f != nullptr ? f : scalar_scan_rows(kind, dtype);
    };
    k.scan_lanes_in_f32 = [](ir::Reduction kind, DType dtype) {
        return vector_scan_lanes_in_f32(target, kind, dtype);
    };
    k.scan_lanes = [](ir::Reduction kind, DType dtype) {
        const StripFunction f = vector_scan_lanes(target, kind, dtype);
        return f != nullptr ? f : scalar_scan_lanes(kind, dtype);
    };
    k.sort = [](DType dtype) { return vector_sort(target, dtype); };
    k.gemm_f32 = vector_gemm_f32(target);
    k.gemm_f64 = vector_gemm_f64(target);
    k.gemm_rows_f32 = vector_gemm_rows_f32(target);
    k.gemm_i32 = vector_gemm_i32(target);
    k.gemm_i64 = vector_gemm_i64(target);
    k.gemm_i16_pairs = vector_gemm_i16_pairs(target);
    // Widened products are faster than scalar products of pairs and quads.
    k.gemm_bf16_pairs = nullptr;
    k.gemm_i8_quads = nullptr;
    k.store = [](DType dtype, bool masked) {
        const StripFunction f = masked ? vector_store_masked(target, dtype) : nullptr;
        return f != nullptr ? f : scalar_store(dtype, masked);
    };
    k.stream = [](DType dtype) { return vector_stream(target, dtype); };
    k.interleave_pairs = [](DType in) { return vector_interleave_pairs(target, in); };
    k.interleave_quads = [] { return vector_interleave_quads(target); };
    k.transpose = [](DType in, DType out) {
        const StripFunction f = vector_transpose(target, in, out);
        return f != nullptr ? f : scalar_transpose(in, out);
    };
    k.super = *vector_superinstructions(target);
    k.fused = *vector_fused_kernels(target);
    k.fused.compiled = [](std::span<const FusedShape> shapes) {
        static const auto ahead = vector_compiled_runs(target);
        constexpr int kBytes = target == Target::avx512 ? 64 : 32;
        // Machine code loads once what slices of a row share, which code compiled ahead does not.
        if (target != Target::neon && shares_slices(shapes)) {
            if (const auto run = compile_run(shapes, kBytes)) return run;
        }
        const auto run = ahead(shapes);
        if (run != nullptr || target == Target::neon) return run;
        return compile_run(shapes, kBytes);
    };
    return k;
}

std::vector<const Kernels*> find_available() {
    std::vector<const Kernels*> tables;
#if !TILEWRIGHT_SCALAR
    const std::int64_t supported = hwy::SupportedTargets();
    if ((supported & HWY_AVX3) != 0) {
        static Kernels avx512 = vector_kernels<Target::avx512>("avx512", 64);
#if HWY_ARCH_X86
        if (has_avx512_vnni()) avx512.gemm_i8_quads = avx512_gemm_i8_quads;
        if (has_avx512_bf16()) {
            static Kernels with_bf16 = avx512;
            with_bf16.name = "avx512_bf16";
            with_bf16.gemm_bf16_pairs = avx512_gemm_bf16_pairs;
            with_bf16.finds_maxima = true;
            with_bf16.super.exp2_sum_pairs = avx512_exp2_sum_pairs;
            with_bf16.super.gradient_pairs = avx512_gradient_pairs;
            with_bf16.interleave_pairs = [](DType in) {
                return in == DType::f32 ? avx512_interleave_f32
                                        : vector_interleave_pairs(Target::avx512, in);
            };
            if (has_amx()) {
                static Kernels with_amx = with_bf16;
                with_amx.name = "amx";
                with_amx.gemm_bf16_pairs = amx_gemm_bf16_pairs;
                with_amx.finds_maxima = false;
                with_amx.wants_k_contiguous = true;
                if (has_amx_int8()) with_amx.gemm_i8_quads = amx_gemm_i8_quads;
                tables.push_back(&with_amx);
            }
            tables.push_back(&with_bf16);
        }
#endif
        tables.push_back(&avx512);
    }
    if ((supported & HWY_AVX2) != 0) {
        static const Kernels table = vector_kernels<Target::avx2>("avx2", 32);
        tables.push_back(&table);
    }
    if ((supported & HWY_NEON) != 0) {
        static const Kernels table = vector_kernels<Target::neon>("neon", 16);
        tables.push_back(&table);
    }
#endif
    tables.push_back(&scalar_kernels());
    return tables;
}

bool for_any_machine = false;

const Kernels& choose() {
#if !TILEWRIGHT_SCALAR && (HWY_ARCH_X86 || HWY_ARCH_ARM_A64)  // others have scalar kernels alone
    if (for_any_machine) {
        constexpr Target kTarget = HWY_ARCH_X86 ? Target::avx2 : Target::neon;
        static const Kernels table = vector_kernels<kTarget>("any", HWY_ARCH_X86 ? 32 : 16);
        return table;
    }
#endif
    const char* wanted = std::getenv("TILEWRIGHT_TARGET");
    if (wanted == nullptr || *wanted == '\0') return *available_kernels().front();
    if (const Kernels* table = find_kernels(wanted)) return *table;
    std::string names;
    for (const Kernels* table : available_kernels()) {
        if (!names.empty()) names += ", ";
        names += table->name;
    }
    user_error("TILEWRIGHT_TARGET", "expected one of {} but got \"{}\"", names, wanted);
}

}  // namespace

void compile_for_any_machine() {
    for_any_machine = true;
}

const std::vector<const Kernels*>& available_kernels() {
    static const std::vector<const Kernels*> tables = find_available();
    return tables;
}

const Kernels* find_kernels(std::string_view name) {
    static const Kernels scalar_amx = [] {
        Kernels k = scalar_kernels();
        k.name = "scalar_amx";
        k.wants_k_contiguous = true;
        return k;
    }();
    if (name == scalar_amx.name) return &scalar_amx;
    for (const Kernels* table : available_kernels()) {
        if (table->name == name) return table;
    }
    return nullptr;
}

const Kernels& kernels() {
    static const Kernels& table = choose();
    return table;
}

}  // namespace tilewright::cpu
