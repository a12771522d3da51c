// Writes to a temporary file, checks it and renames it.
#include "support/write_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "support/check.h"

namespace tilewright {
namespace {

namespace fs = std::filesystem;

std::string system_reason(int error) {
    return error == 0 ? "unknown reason" : std::generic_category().message(error);
}

[[noreturn]] void refuse(const char* op, const std::string& path, int error) {
    user_error(op, "expected a path that can be written but got {}: {}", path,
               system_reason(error));
}

/// Creates an empty file beside `target` that did not exist: others may also write to the folder.
fs::path temporary_beside(const char* op, const fs::path& target) {
    static std::atomic<unsigned> counter{0};
    for (int attempt = 0;; ++attempt) {
        fs::path temporary = target;
        temporary += fmt::format(".{}.{}.tmp", ::getpid(), counter.fetch_add(1));
        const int file = ::open(temporary.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
        if (file >= 0) {
            ::close(file);
            return temporary;
        }
        if (errno != EEXIST || attempt == 100) refuse(op, target.string(), errno);
    }
}

/// The file that `path` refers to through symbolic links; it need not exist.
fs::path resolve_links(const std::string& path) {
    std::error_code error;
    fs::path target = path;
    for (int links = 0; links < 40 && fs::is_symlink(target, error); ++links) {
        const fs::path next = fs::read_symlink(target, error);
        target = next.is_absolute() ? next : target.parent_path() / next;
    }
    return target;
}

bool write_all(const fs::path& path, const std::function<void(std::ostream&)>& write, int& error) {
    errno = 0;
    std::ofstream stream(path, std::ios::binary | std::ios::trunc);
    if (stream) write(stream);
    if (stream) stream.flush();
    error = errno;
    const bool sound = static_cast<bool>(stream);
    stream.close();
    if (sound && !stream) error = errno;
    return sound && static_cast<bool>(stream);
}

}  // namespace

void replace_file(const char* op, const std::string& path,
                  const std::function<void(std::ostream&)>& write) {
    const fs::path target = path;
    const fs::path temporary = temporary_beside(op, target);
    std::error_code failure;
    int error = 0;
    try {
        if (!write_all(temporary, write, error))
            user_error(op, "could not write all of {}: {}", path, system_reason(error));
        const fs::file_status status = fs::status(target, failure);
        if (fs::is_regular_file(status)) fs::permissions(temporary, status.permissions(), failure);
        fs::rename(temporary, target, failure);
        if (failure) refuse(op, path, failure.value());
    } catch (...) {
        fs::remove(temporary, failure);
        throw;
    }
}

void write_file(const char* op, const std::string& path,
                const std::function<void(std::ostream&)>& write) {
    const fs::path target = resolve_links(path);
    std::error_code ignored;
    const fs::file_status status = fs::status(target, ignored);
    if (fs::exists(status) && !fs::is_regular_file(status)) {
        int error = 0;
        if (!write_all(target, write, error)) refuse(op, path, error);
        return;
    }
    replace_file(op, target.string(), write);
}

void expect_writable(const char* op, const std::string& path) {
    const fs::path target = resolve_links(path);
    std::error_code ignored;
    const fs::file_status status = fs::status(target, ignored);
    if (fs::is_directory(status)) refuse(op, path, EISDIR);
    if (fs::exists(status) && !fs::is_regular_file(status)) {
        if (::access(target.c_str(), W_OK) != 0) refuse(op, path, errno);
        return;
    }
    fs::remove(temporary_beside(op, target), ignored);
}

}  // namespace tilewright
