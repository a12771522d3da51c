// Files that appear whole under their name or not at all.
#pragma once

#include <functional>
#include <ostream>
#include <string>

namespace tilewright {

/// What `write` puts into its stream becomes the file `path`: it goes to a temporary file beside it
/// first, which is renamed once all of it is written, so that a failure leaves an old file as it
/// was. Links are followed; what is no regular file (a device, a pipe) is written to as it is.
/// UserError "[op] ..." with the system's reason when that fails.
void write_file(const char* op, const std::string& path,
                const std::function<void(std::ostream&)>& write);

/// UserError "[op] ..." unless `write_file` could begin.
void expect_writable(const char* op, const std::string& path);

}  // namespace tilewright
