// Conversions between the C interface and C++: borrowed views, results, exceptions as statuses.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "tilewright/c_api.h"
#include "tilewright/error.h"
#include "tilewright/mask.h"
#include "tilewright/mod.h"
#include "tilewright/tensor.h"

struct tw_mod {
    tilewright::Mod mod;
};

struct tw_mask {
    tilewright::BlockMask mask;
};

namespace tilewright::c_api {

/// This thread's text: of the last failure, or of the last function that returns a text.
std::string& text();

/// Keeps the text of a failure, or no text if memory runs out.
void keep_text(const char* what) noexcept;

/// A tensor on borrowed memory; undefined if null.
Tensor borrow(const DLTensor* view);

/// UserError of `op` for a device that is neither a CPU nor a CUDA GPU.
Device device_of(const char* op, DLDevice device);

/// A dtype in DLPack's form.
DLDataType dtype_of(DType dtype);

/// Results on their way to the caller, who gets all of them or none.
class Results {
  public:
    Results() = default;
    ~Results();
    Results(const Results&) = delete;
    Results& operator=(const Results&) = delete;

    /// A null place requests nothing; an undefined tensor is given as null.
    void add(DLManagedTensor** place, const Tensor& tensor);
    /// Writes every place. Nothing may throw afterwards.
    void give() noexcept;

  private:
    std::vector<std::pair<DLManagedTensor**, DLManagedTensor*>> results_;
};

/// UserError if a required pointer is null.
void expect_given(const char* op, const char* argument, const void* pointer);

/// Runs `body`; an exception becomes the status.
template <typename Body>
tw_status guarded(Body&& body) noexcept {
    try {
        body();
        return TW_OK;
    } catch (const UserError& error) {
        keep_text(error.what());
        return TW_BAD_INPUT;
    } catch (const OutOfMemory& error) {
        keep_text(error.what());
        return TW_OUT_OF_MEMORY;
    } catch (const std::bad_alloc&) {
        keep_text("expected sizes that fit in memory but there is too little of it");
        return TW_OUT_OF_MEMORY;
    } catch (const CudaError& error) {
        constexpr int kCudaOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY
        keep_text(error.what());
        return error.code == kCudaOutOfMemory ? TW_OUT_OF_MEMORY : TW_FAILED;
    } catch (const std::exception& error) {
        keep_text(error.what());
    } catch (...) {
        keep_text("unknown failure");
    }
    return TW_FAILED;
}

}  // namespace tilewright::c_api
