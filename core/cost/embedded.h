#pragma once

#include <string>
#include <utility>
#include <vector>

namespace nnscaler {

/// The device descriptions compiled into the core: name ("a100-80gb") and YAML text, sorted by
/// name.
const std::vector<std::pair<std::string, std::string>>& embedded_devices();

}  // namespace nnscaler
