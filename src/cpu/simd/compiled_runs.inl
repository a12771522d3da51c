// Runs of steps that are functions of their own, and the programs that have them.
// Generated: `cmake --build build --target update_compiled_runs`.
// clang-format off
// softmax f32
TW_COMPILED_RUN(kRun0,
    load(DType::f32),
    binary(Op::sub, kSplat),
    exponential(),
    store(DType::f32),
    reduce(ir::Reduction::sum))
// softmax f32
TW_COMPILED_RUN(kRun1,
    load(DType::f32),
    binary(Op::mul, kSplat),
    store(DType::f32))
// rms_norm f32, rms_norm of long rows f32
TW_COMPILED_RUN(kRun2,
    load(DType::f32),
    binary(Op::mul, kInLanes),
    reduce(ir::Reduction::sum))
// rms_norm f32, rms_norm of long rows f32
TW_COMPILED_RUN(kRun3,
    load(DType::f32),
    binary(Op::mul, kSplat),
    binary(Op::mul, kInLanes),
    store(DType::f32))
// rms_norm_backward f32, rms_norm of long rows f32
TW_COMPILED_RUN(kRun4,
    load(DType::f32),
    binary(Op::mul, kSplat),
    keep(0),
    load(DType::f32),
    binary(Op::mul, kInLanes),
    binary(Op::mul, kept(0)),
    reduce(ir::Reduction::sum))
// rms_norm_backward f32
TW_COMPILED_RUN(kRun5,
    load(DType::f32),
    binary(Op::mul, kInLanes),
    keep(0),
    load(DType::f32),
    binary(Op::mul, kSplat),
    keep(1),
    binary(Op::mul, kSplat),
    binary(Op::sub, kept(0), 1),
    binary(Op::mul, kSplat),
    store(DType::f32),
    load(DType::f32),
    fma_with(kept(1), kInLanes),
    store(DType::f32))
// layer_norm f32, layer_norm of long rows f32
TW_COMPILED_RUN(kRun6,
    load(DType::f32),
    binary(Op::sub, kSplat),
    both(Op::mul),
    reduce(ir::Reduction::sum))
// layer_norm f32, layer_norm of long rows f32
TW_COMPILED_RUN(kRun7,
    load(DType::f32),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    fma_with(kInLanes, kInLanes),
    store(DType::f32))
// layer_norm_backward f32
TW_COMPILED_RUN(kRun8,
    load(DType::f32),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    keep(0),
    load(DType::f32),
    binary(Op::mul, kInLanes),
    reduce(ir::Reduction::sum),
    binary(Op::mul, kept(0)),
    reduce(ir::Reduction::sum))
// layer_norm_backward f32
TW_COMPILED_RUN(kRun9,
    load(DType::f32),
    binary(Op::mul, kInLanes),
    keep(0),
    load(DType::f32),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    keep(1),
    binary(Op::mul, kSplat),
    binary(Op::sub, kept(0), 1),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    store(DType::f32),
    load(DType::f32),
    fma_with(kept(1), kInLanes),
    store(DType::f32),
    load(DType::f32),
    binary(Op::add, kInLanes),
    store(DType::f32))
// layer_norm_backward f32, layer_norm of long rows f32, layer_norm_backward bf16, layer_norm of long rows bf16, layer_norm_backward f16, layer_norm of long rows f16
TW_COMPILED_RUN(kRun10,
    load(DType::f32),
    store(DType::f32),
    load(DType::f32),
    store(DType::f32))
// rms_norm of long rows f32
TW_COMPILED_RUN(kRun11,
    load(DType::f32),
    binary(Op::mul, kSplat),
    keep(0),
    load(DType::f32),
    binary(Op::mul, kInLanes),
    keep(1),
    take(0),
    binary(Op::mul, kSplat),
    binary(Op::sub, kept(1), 1),
    binary(Op::mul, kSplat),
    store(DType::f32),
    load(DType::f32),
    fma_with(kept(0), kInLanes),
    store(DType::f32))
// layer_norm of long rows f32
TW_COMPILED_RUN(kRun12,
    load(DType::f32),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    keep(0),
    load(DType::f32),
    binary(Op::mul, kInLanes),
    keep(1),
    binary(Op::mul, kept(0)),
    reduce(ir::Reduction::sum),
    take(1),
    reduce(ir::Reduction::sum))
// layer_norm of long rows f32
TW_COMPILED_RUN(kRun13,
    load(DType::f32),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    keep(0),
    load(DType::f32),
    binary(Op::mul, kInLanes),
    keep(1),
    take(0),
    binary(Op::mul, kSplat),
    binary(Op::sub, kept(1), 1),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    store(DType::f32),
    load(DType::f32),
    fma_with(kept(0), kInLanes),
    store(DType::f32),
    load(DType::f32),
    binary(Op::add, kInLanes),
    store(DType::f32))
// softmax bf16
TW_COMPILED_RUN(kRun14,
    load(DType::bf16),
    reduce(ir::Reduction::max))
// softmax bf16
TW_COMPILED_RUN(kRun15,
    load(DType::bf16),
    binary(Op::sub, kSplat),
    exponential(),
    store(DType::f32),
    reduce(ir::Reduction::sum))
// softmax bf16
TW_COMPILED_RUN(kRun16,
    load(DType::f32),
    binary(Op::mul, kSplat),
    store(DType::bf16))
// rms_norm bf16, rms_norm of long rows bf16
TW_COMPILED_RUN(kRun17,
    load(DType::bf16),
    both(Op::mul),
    reduce(ir::Reduction::sum))
// rms_norm bf16
TW_COMPILED_RUN(kRun18,
    load(DType::bf16),
    binary(Op::mul, kSplat),
    binary(Op::mul, kInLanes),
    store(DType::bf16))
// rms_norm_backward bf16
TW_COMPILED_RUN(kRun19,
    load(DType::bf16),
    binary(Op::mul, kSplat),
    keep(0),
    load(DType::bf16),
    binary(Op::mul, kInLanes),
    binary(Op::mul, kept(0)),
    reduce(ir::Reduction::sum))
// rms_norm_backward bf16
TW_COMPILED_RUN(kRun20,
    load(DType::bf16),
    binary(Op::mul, kInLanes),
    keep(0),
    load(DType::bf16),
    keep(1),
    load(DType::bf16),
    binary(Op::mul, kSplat),
    keep(2),
    binary(Op::mul, kSplat),
    binary(Op::sub, kept(0), 1),
    binary(Op::mul, kSplat),
    store(DType::bf16),
    take(1),
    fma_with(kept(2), kInLanes),
    store(DType::f32))
// layer_norm bf16
TW_COMPILED_RUN(kRun21,
    load(DType::bf16),
    store(DType::f32),
    load(DType::bf16),
    store(DType::f32))
// layer_norm bf16, layer_norm of long rows bf16
TW_COMPILED_RUN(kRun22,
    load(DType::bf16),
    reduce(ir::Reduction::sum))
// layer_norm bf16, layer_norm of long rows bf16
TW_COMPILED_RUN(kRun23,
    load(DType::bf16),
    binary(Op::sub, kSplat),
    both(Op::mul),
    reduce(ir::Reduction::sum))
// layer_norm bf16
TW_COMPILED_RUN(kRun24,
    load(DType::bf16),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    fma_with(kInLanes, kInLanes),
    store(DType::bf16))
// layer_norm_backward bf16
TW_COMPILED_RUN(kRun25,
    load(DType::bf16),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    keep(0),
    load(DType::bf16),
    binary(Op::mul, kInLanes),
    reduce(ir::Reduction::sum),
    binary(Op::mul, kept(0)),
    reduce(ir::Reduction::sum))
// layer_norm_backward bf16
TW_COMPILED_RUN(kRun26,
    load(DType::bf16),
    binary(Op::mul, kInLanes),
    keep(0),
    load(DType::bf16),
    keep(1),
    load(DType::bf16),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    keep(2),
    binary(Op::mul, kSplat),
    binary(Op::sub, kept(0), 1),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    store(DType::bf16),
    take(1),
    fma_with(kept(2), kInLanes),
    store(DType::f32),
    load(DType::f32),
    binary(Op::add, kept(1)),
    store(DType::f32))
// rms_norm of long rows bf16
TW_COMPILED_RUN(kRun27,
    load(DType::bf16),
    binary(Op::mul, kSplat),
    keep(0),
    load(DType::bf16),
    binary(Op::mul, kept(0), 1),
    store(DType::bf16))
// rms_norm of long rows bf16
TW_COMPILED_RUN(kRun28,
    load(DType::bf16),
    binary(Op::mul, kSplat),
    keep(0),
    load(DType::bf16),
    keep(1),
    load(DType::bf16),
    binary(Op::mul, kept(1), 1),
    binary(Op::mul, kept(0)),
    reduce(ir::Reduction::sum))
// rms_norm of long rows bf16
TW_COMPILED_RUN(kRun29,
    load(DType::bf16),
    binary(Op::mul, kSplat),
    keep(0),
    load(DType::bf16),
    keep(1),
    binary(Op::mul, kInLanes),
    keep(2),
    take(0),
    binary(Op::mul, kSplat),
    binary(Op::sub, kept(2), 1),
    binary(Op::mul, kSplat),
    store(DType::bf16),
    take(1),
    fma_with(kept(0), kInLanes),
    store(DType::f32))
// layer_norm of long rows bf16
TW_COMPILED_RUN(kRun30,
    load(DType::bf16),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    keep(0),
    load(DType::bf16),
    keep(1),
    load(DType::bf16),
    binary(Op::mul, kept(1), 1),
    keep(2),
    binary(Op::mul, kept(0)),
    reduce(ir::Reduction::sum),
    take(2),
    reduce(ir::Reduction::sum))
// layer_norm of long rows bf16
TW_COMPILED_RUN(kRun31,
    load(DType::bf16),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    keep(0),
    load(DType::bf16),
    keep(1),
    binary(Op::mul, kInLanes),
    keep(2),
    take(0),
    binary(Op::mul, kSplat),
    binary(Op::sub, kept(2), 1),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    store(DType::bf16),
    take(1),
    fma_with(kept(0), kInLanes),
    store(DType::f32),
    load(DType::f32),
    binary(Op::add, kept(1)),
    store(DType::f32))
// softmax f16
TW_COMPILED_RUN(kRun32,
    load(DType::f16),
    reduce(ir::Reduction::max))
// softmax f16
TW_COMPILED_RUN(kRun33,
    load(DType::f16),
    binary(Op::sub, kSplat),
    exponential(),
    store(DType::f32),
    reduce(ir::Reduction::sum))
// softmax f16
TW_COMPILED_RUN(kRun34,
    load(DType::f32),
    binary(Op::mul, kSplat),
    store(DType::f16))
// rms_norm f16, rms_norm of long rows f16
TW_COMPILED_RUN(kRun35,
    load(DType::f16),
    both(Op::mul),
    reduce(ir::Reduction::sum))
// rms_norm f16
TW_COMPILED_RUN(kRun36,
    load(DType::f16),
    binary(Op::mul, kSplat),
    binary(Op::mul, kInLanes),
    store(DType::f16))
// rms_norm_backward f16
TW_COMPILED_RUN(kRun37,
    load(DType::f16),
    binary(Op::mul, kSplat),
    keep(0),
    load(DType::f16),
    binary(Op::mul, kInLanes),
    binary(Op::mul, kept(0)),
    reduce(ir::Reduction::sum))
// rms_norm_backward f16
TW_COMPILED_RUN(kRun38,
    load(DType::f16),
    binary(Op::mul, kInLanes),
    keep(0),
    load(DType::f16),
    keep(1),
    load(DType::f16),
    binary(Op::mul, kSplat),
    keep(2),
    binary(Op::mul, kSplat),
    binary(Op::sub, kept(0), 1),
    binary(Op::mul, kSplat),
    store(DType::f16),
    take(1),
    fma_with(kept(2), kInLanes),
    store(DType::f32))
// layer_norm f16
TW_COMPILED_RUN(kRun39,
    load(DType::f16),
    store(DType::f32),
    load(DType::f16),
    store(DType::f32))
// layer_norm f16, layer_norm of long rows f16
TW_COMPILED_RUN(kRun40,
    load(DType::f16),
    reduce(ir::Reduction::sum))
// layer_norm f16, layer_norm of long rows f16
TW_COMPILED_RUN(kRun41,
    load(DType::f16),
    binary(Op::sub, kSplat),
    both(Op::mul),
    reduce(ir::Reduction::sum))
// layer_norm f16
TW_COMPILED_RUN(kRun42,
    load(DType::f16),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    fma_with(kInLanes, kInLanes),
    store(DType::f16))
// layer_norm_backward f16
TW_COMPILED_RUN(kRun43,
    load(DType::f16),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    keep(0),
    load(DType::f16),
    binary(Op::mul, kInLanes),
    reduce(ir::Reduction::sum),
    binary(Op::mul, kept(0)),
    reduce(ir::Reduction::sum))
// layer_norm_backward f16
TW_COMPILED_RUN(kRun44,
    load(DType::f16),
    binary(Op::mul, kInLanes),
    keep(0),
    load(DType::f16),
    keep(1),
    load(DType::f16),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    keep(2),
    binary(Op::mul, kSplat),
    binary(Op::sub, kept(0), 1),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    store(DType::f16),
    take(1),
    fma_with(kept(2), kInLanes),
    store(DType::f32),
    load(DType::f32),
    binary(Op::add, kept(1)),
    store(DType::f32))
// rms_norm of long rows f16
TW_COMPILED_RUN(kRun45,
    load(DType::f16),
    binary(Op::mul, kSplat),
    keep(0),
    load(DType::f16),
    binary(Op::mul, kept(0), 1),
    store(DType::f16))
// rms_norm of long rows f16
TW_COMPILED_RUN(kRun46,
    load(DType::f16),
    binary(Op::mul, kSplat),
    keep(0),
    load(DType::f16),
    keep(1),
    load(DType::f16),
    binary(Op::mul, kept(1), 1),
    binary(Op::mul, kept(0)),
    reduce(ir::Reduction::sum))
// rms_norm of long rows f16
TW_COMPILED_RUN(kRun47,
    load(DType::f16),
    binary(Op::mul, kSplat),
    keep(0),
    load(DType::f16),
    keep(1),
    binary(Op::mul, kInLanes),
    keep(2),
    take(0),
    binary(Op::mul, kSplat),
    binary(Op::sub, kept(2), 1),
    binary(Op::mul, kSplat),
    store(DType::f16),
    take(1),
    fma_with(kept(0), kInLanes),
    store(DType::f32))
// layer_norm of long rows f16
TW_COMPILED_RUN(kRun48,
    load(DType::f16),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    keep(0),
    load(DType::f16),
    keep(1),
    load(DType::f16),
    binary(Op::mul, kept(1), 1),
    keep(2),
    binary(Op::mul, kept(0)),
    reduce(ir::Reduction::sum),
    take(2),
    reduce(ir::Reduction::sum))
// layer_norm of long rows f16
TW_COMPILED_RUN(kRun49,
    load(DType::f16),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    keep(0),
    load(DType::f16),
    keep(1),
    binary(Op::mul, kInLanes),
    keep(2),
    take(0),
    binary(Op::mul, kSplat),
    binary(Op::sub, kept(2), 1),
    binary(Op::sub, kSplat),
    binary(Op::mul, kSplat),
    store(DType::f16),
    take(1),
    fma_with(kept(0), kInLanes),
    store(DType::f32),
    load(DType::f32),
    binary(Op::add, kept(1)),
    store(DType::f32))
// clang-format on
