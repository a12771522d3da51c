// Objects that live as long as a graph, by the driver's user objects.
#include "cuda/runtime/graph.h"

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace tilewright::cuda {
namespace {

using Object = std::shared_ptr<const void>;

// CUuserObject_flags and CUuserObjectRetain_flags.
constexpr unsigned kNoDestructorSync = 1;
constexpr unsigned kMove = 1;

/// Objects whose graphs are gone.
struct Gone {
    std::mutex mutex;
    std::vector<Object> objects;
    std::atomic<bool> any = false;
};
Gone& gone() {
    static auto* const kGone = new Gone;
    return *kGone;
}

void on_end_of_graph(void* kept) {
    const std::unique_ptr<Object> object(static_cast<Object*>(kept));
    const std::scoped_lock lock(gone().mutex);
    gone().objects.push_back(std::move(*object));
    gone().any = true;
}

}  // namespace

void keep_for_graph(StreamHandle stream, Object object) {
    const Driver& cuda = driver();
    int status = 0;
    void *graph = nullptr, *user_object = nullptr;
    std::uint64_t id = 0;
    cuda.check(cuda.cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, nullptr, nullptr),
               "asking for a captured graph");
    auto* const kept = new Object(std::move(object));  // on_end_of_graph deletes it
    const int made =
        cuda.cuUserObjectCreate(&user_object, kept, on_end_of_graph, 1, kNoDestructorSync);
    if (made != 0) delete kept;
    cuda.check(made, "keeping an object for a graph");
    const int retained = cuda.cuGraphRetainUserObject(graph, user_object, 1, kMove);
    if (retained != 0) kept->reset();  // the driver keeps no more than the empty pointer
    cuda.check(retained, "keeping an object for a graph");
}

void drop_gone_graphs() {
    if (!gone().any) return;
    std::vector<Object> objects;  // destroyed after the lock is released
    const std::scoped_lock lock(gone().mutex);
    objects.swap(gone().objects);
    gone().any = false;
}

}  // namespace tilewright::cuda
