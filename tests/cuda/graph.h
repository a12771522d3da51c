// Work captured in a CUDA graph, for tests.
#pragma once

#include <functional>
#include <utility>

#include "cuda/runtime/device.h"
#include "cuda/runtime/driver.h"
#include "cuda/runtime/memory.h"

namespace tilewright::testing_support {

/// Which calls of the driver a capture forbids: those of all threads, or of its own.
enum class Capture : int { all_threads = 0, own_thread = 1 };

/// What `work` launches on a stream, as a graph that is ready to run.
class Graph {
  public:
    Graph(const cuda::Stream& stream, const std::function<void()>& work,
          Capture forbids = Capture::own_thread) {
        const cuda::Driver& driver = cuda::driver();
        const cuda::ContextScope scope(0);
        void* graph = nullptr;
        driver.check(driver.cuStreamBeginCapture_v2(stream.handle(), static_cast<int>(forbids)),
                     "beginning a capture");
        work();
        driver.check(driver.cuStreamEndCapture(stream.handle(), &graph), "ending a capture");
        driver.check(driver.cuGraphInstantiateWithFlags(&graph_, graph, 0),
                     "instantiating a graph");
        driver.cuGraphDestroy(graph);
    }
    ~Graph() {
        if (graph_ != nullptr) cuda::driver().cuGraphExecDestroy(graph_);
    }
    Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
    Graph& operator=(Graph&&) = delete;

    /// Launches it, without waiting.
    void launch(const cuda::Stream& stream) const {
        const cuda::Driver& driver = cuda::driver();
        const cuda::ContextScope scope(0);
        driver.check(driver.cuGraphLaunch(graph_, stream.handle()), "launching a graph");
    }

  private:
    void* graph_ = nullptr;
};

}  // namespace tilewright::testing_support
