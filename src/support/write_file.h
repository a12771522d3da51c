// Files that appear under their name complete or not at all.
#pragma once

#include <functional>
#include <ostream>
#include <string>

namespace tilewright {

/// Replaces the file `path` by what `write` writes to its stream. The bytes go to a temporary file
/// in the same folder, which is renamed once all are written, so that a failure leaves the old file
/// unchanged. UserError "[op] ..." with the system's reason if that fails.
void replace_file(const char* op, const std::string& path,
                  const std::function<void(std::ostream&)>& write);

/// The same for a path given by a user: follows symbolic links, and writes directly to anything but
/// a regular file (a device, a pipe).
void write_file(const char* op, const std::string& path,
                const std::function<void(std::ostream&)>& write);

/// UserError "[op] ..." unless `write_file` could start.
void expect_writable(const char* op, const std::string& path);

}  // namespace tilewright
