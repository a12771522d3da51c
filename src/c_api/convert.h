// Between the C interface and C++: borrowed views, results, exceptions as statuses.
#pragma once

#include <exception>
#include <string>

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

/// This thread's text of the last failure, or of the last function that returns a text.
std::string& text();

/// A tensor on borrowed memory; null: an undefined one.
Tensor borrow(const DLTensor* view);

/// DLPack's form of a dtype.
DLDataType dtype_of(DType dtype);

/// Hands a result to the caller, who asked for it by a place that is not null.
void give(DLManagedTensor** place, const Tensor& tensor);

/// UserError when a pointer that must be given is null.
void expect_given(const char* op, const char* argument, const void* pointer);

/// Runs `body`; what it throws becomes the status.
template <typename Body>
tw_status guarded(Body&& body) {
    try {
        body();
        return TW_OK;
    } catch (const UserError& error) {
        text() = error.what();
        return TW_BAD_INPUT;
    } catch (const std::exception& error) {
        text() = error.what();
    } catch (...) {
        text() = "unknown failure";
    }
    return TW_FAILED;
}

}  // namespace tilewright::c_api
