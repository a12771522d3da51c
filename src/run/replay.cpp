// Captures and launches CUDA graphs.
#include "run/replay.h"

#include "cuda/runtime/device.h"
#include "cuda/runtime/driver.h"
#include "tilewright/run.h"

namespace tilewright::run {

Replay::Replay(const std::function<void()>& work, int calls, Device device) : device_(device) {
    work();  // compiles the kernels
    synchronize(device);
    const cuda::ContextScope scope(device.index);
    const cuda::Driver& driver = cuda::driver();
    constexpr unsigned kNonBlocking = 1;
    constexpr int kRelaxed = 2;
    driver.check(driver.cuStreamCreate(&stream_, kNonBlocking), "making a stream");
    const CudaScope on_stream(stream_, {});
    work();  // allocates memory on this stream
    synchronize(device);
    void* graph = nullptr;
    driver.check(driver.cuStreamBeginCapture_v2(stream_, kRelaxed), "capturing");
    for (int i = 0; i < calls; ++i) work();
    driver.check(driver.cuStreamEndCapture(stream_, &graph), "capturing");
    driver.check(driver.cuGraphInstantiateWithFlags(&runnable_, graph, 0), "instantiating");
    driver.cuGraphDestroy(graph);
}

Replay::~Replay() {
    const cuda::ContextScope scope(device_.index);
    cuda::driver().cuGraphExecDestroy(runnable_);
    cuda::driver().cuStreamDestroy_v2(stream_);
}

void Replay::launch() const {
    const cuda::ContextScope scope(device_.index);
    cuda::driver().check(cuda::driver().cuGraphLaunch(runnable_, stream_), "launching");
}

void Replay::wait() const {
    const CudaScope on_stream(stream_, {});
    synchronize(device_);
}

}  // namespace tilewright::run
