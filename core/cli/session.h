#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/plan/plan.h"

namespace nnscaler {

/// What the command line and the Python package ask of the core: whole paths through its folders.

/// Reads an archive and prepares it for planning.
Prepared open_archive(const std::string& archive, const std::string& recompute_modules = "");

/// The search, with the archive recorded in the plan.
Plan plan_archive(const Prepared& prepared, const std::string& archive, const PlanOptions& options);

/// A plan.json (its text; `name` stands in messages) applied to its archive: file name -> Python
/// source.
std::map<std::string, std::string> emit_plan(const std::string& archive,
                                             const std::string& plan_text, const std::string& name);

/// The same program, but it returns every operator's first result, whole. `descriptions` says which
/// operators.
std::map<std::string, std::string> emit_exposed(const std::string& archive,
                                                const std::string& plan_text,
                                                const std::string& name,
                                                std::vector<std::string>& descriptions);

/// A tensor literal of the model that export lifted out of forward.
struct ArchiveConstant {
  std::string name;   ///< As generated code registers it.
  std::string dtype;  ///< "float32"
  std::vector<int64_t> shape;
  std::string bytes;  ///< Contiguous, little-endian.
};
/// All of an archive's, in its order.
std::vector<ArchiveConstant> archive_constants(const std::string& archive);

/// The operators of an archive as policies need them, as JSON.
std::string archive_operators(const std::string& archive, const std::string& recompute_modules);

}  // namespace nnscaler
