#pragma once

#include <map>
#include <string>

#include "core/lower/program.h"

namespace nnscaler {

/// Writes a rank program as Python: file name -> text. "gencode0.py" holds the module; the file of
/// every other rank imports it. The text is what `ruff format` would leave and passes `ruff check`
/// with default settings.
///
/// Hierarchy, names and functions are the user's; equal modules are one class; runs of equal calls
/// are loops. Raises UnsupportedError naming operator, file and line for what has no Python
/// spelling.
std::map<std::string, std::string> emit(const Program& program);

}  // namespace nnscaler
