// What CUDA graphs read and run stays alive as long as they do.
#pragma once

#include <memory>

#include "cuda/runtime/driver.h"

namespace tilewright::cuda {

/// While `stream` is captured: keeps an object until the graph, its copies and everything that was
/// instantiated from them are destroyed and their launches have finished.
void keep_for_graph(StreamHandle stream, std::shared_ptr<const void> object);

/// Drops the objects of graphs that are gone. The driver reports the end of a graph on a thread
/// that must not call it, so the objects wait for this.
void drop_gone_graphs();

}  // namespace tilewright::cuda
