#include "core/cli/session.h"

#include <fmt/format.h>

#include "core/base/text.h"
#include "core/emit/emit.h"
#include "core/graph/archive.h"
#include "core/lower/lower.h"
#include "core/version.h"

namespace nnscaler {

Prepared open_archive(const std::string& archive, const std::string& recompute_modules) {
  return prepare(read_archive(archive), recompute_modules);
}

Plan plan_archive(const Prepared& prepared, const std::string& archive,
                  const PlanOptions& options) {
  Plan plan = search(prepared, options);
  plan.archive = archive;
  plan.archive_digest = prepared.graph.digest;
  return plan;
}

std::map<std::string, std::string> emit_plan(const std::string& archive,
                                             const std::string& plan_text,
                                             const std::string& name) {
  const Prepared prepared = open_archive(archive, recompute_modules_of(plan_text, name));
  Program program = lower(prepared, plan_from_json(plan_text, name, prepared));
  program.plan_digest = digest(plan_text);
  program.header = {
      fmt::format("Rank program of {} for the mesh {}.", prepared.graph.module_class,
                  program.mesh.to_string()),
      "",
      fmt::format("Written by nnscaler {} from plan {}; every rank runs this file with its own",
                  kVersion, program.plan_digest),
      "coordinates."};
  return emit(program);
}

std::string archive_operators(const std::string& archive, const std::string& recompute_modules) {
  return operators_json(open_archive(archive, recompute_modules));
}

}  // namespace nnscaler
