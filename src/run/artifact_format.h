// Names of an artifact's files and how they are checked (docs/design/012-artifacts.md).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ir/function.h"
#include "support/disk_cache.h"
#include "tilewright/artifact.h"

namespace tilewright::run {

using Json = nlohmann::json;

inline constexpr const char* kArtifactFormat = "tilewright artifact";
/// Changes with the meaning of a manifest and with the arguments of GPU kernels.
inline constexpr int kArtifactVersion = 1;
inline constexpr const char* kManifest = "manifest.json";
/// The manifest holds the checksums of the other files, and its own, computed with "" in its place.
inline constexpr const char* kChecksum = "checksum";

inline std::string manifest_checksum(Json manifest) {
    manifest[kChecksum] = "";
    return content_hash(manifest.dump());
}

/// Which global Refs a kernel may write, in parameter order.
std::vector<bool> written_refs(const ir::Function& kernel);

/// The name as a C++ identifier.
std::string identifier(const std::string& name);

/// The C++17 header with the launcher.
std::string launcher_header(const std::string& name, const std::string& checksum,
                            const std::vector<Artifact::Parameter>& parameters);

}  // namespace tilewright::run
