// Runs the `tilewright` program inside the test.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "cli/app.h"

namespace tilewright::cli {

/// A folder that is removed at the end of the test.
class TemporaryFolder {
  public:
    TemporaryFolder() {
        std::string name = (std::filesystem::temp_directory_path() / "tilewright-XXXXXX").string();
        path_ = mkdtemp(name.data());
    }
    ~TemporaryFolder() { std::filesystem::remove_all(path_); }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    std::string operator/(const std::string& file) const { return (path_ / file).string(); }

  private:
    std::filesystem::path path_;
};

struct ProgramResult {
    int status;
    std::string out, error;
};

inline ProgramResult run_program(const std::vector<std::string>& arguments,
                                 const std::string& input = {}) {
    std::ostringstream out, error;
    std::istringstream in(input);
    const int status = run(arguments, out, error, in);
    return {status, out.str(), error.str()};
}

}  // namespace tilewright::cli
