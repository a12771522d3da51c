// Files that appear whole under their name or not at all.
#pragma once

#include <functional>
#include <ostream>
#include <string>

namespace tilewright {

/// Replaces the file `path` by what `write` puts into its stream. The bytes go to a temporary file
/// in the same folder, which is renamed once all of them are written, so that a failure leaves the
/// old file as it was. UserError "[op] ..." with the system's reason when that fails.
void replace_file(const char* op, const std::string& path,
                  const std::function<void(std::ostream&)>& write);

/// The same for a path that a user gives: symbolic links are followed, and anything but a regular
/// file (a device, a pipe) is written to directly.
void write_file(const char* op, const std::string& path,
                const std::function<void(std::ostream&)>& write);

/// UserError "[op] ..." unless `write_file` could begin.
void expect_writable(const char* op, const std::string& path);

}  // namespace tilewright
