#include "core/cli/session.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/emit/emit.h"
#include "core/graph/archive.h"
#include "core/lower/expose.h"
#include "core/lower/lower.h"
#include "core/version.h"

namespace nnscaler {

Prepared open_archive(const std::string& archive, const std::string& recompute_modules) {
  return prepare(read_archive(archive), recompute_modules);
}

Plan plan_archive(const Prepared& prepared, const std::string& archive,
                  const PlanOptions& options) {
  if (!options.forced.empty() &&
      options.forced.rbegin()->first >= static_cast<int>(prepared.graph.operators.size())) {
    throw InputError(fmt::format("a partition is given for operator {}, but {} has {} operators",
                                 options.forced.rbegin()->first, archive,
                                 prepared.graph.operators.size()));
  }
  Plan plan = search(prepared, options);
  plan.archive = archive;
  plan.archive_digest = prepared.graph.digest;
  return plan;
}

namespace {

std::map<std::string, std::string> emit_program(const Prepared& prepared, const Plan& plan,
                                                const std::string& plan_text) {
  Program program = lower(prepared, plan);
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

}  // namespace

std::map<std::string, std::string> emit_plan(const std::string& archive,
                                             const std::string& plan_text,
                                             const std::string& name) {
  const Prepared prepared = open_archive(archive, recompute_modules_of(plan_text, name));
  return emit_program(prepared, plan_from_json(plan_text, name, prepared), plan_text);
}

std::map<std::string, std::string> emit_exposed(const std::string& archive,
                                                const std::string& plan_text,
                                                const std::string& name,
                                                std::vector<std::string>& descriptions) {
  Prepared prepared = open_archive(archive, recompute_modules_of(plan_text, name));
  Plan plan = plan_from_json(plan_text, name, prepared);
  descriptions = expose_results(prepared, plan);
  return emit_program(prepared, plan, plan_text);
}

std::vector<ArchiveConstant> archive_constants(const std::string& archive) {
  const Graph graph = read_archive(archive);
  std::vector<ArchiveConstant> result;
  for (const Value& value : graph.values) {
    if (value.kind != ValueKind::kConstant || value.is_symbol) continue;
    ArchiveConstant constant{
        value.fqn, dtype_name(value.dtype), {}, read_tensor(archive, value.fqn)};
    for (const Extent& extent : value.shape) constant.shape.push_back(extent.value);
    result.push_back(std::move(constant));
  }
  return result;
}

std::string archive_operators(const std::string& archive, const std::string& recompute_modules) {
  return operators_json(open_archive(archive, recompute_modules));
}

}  // namespace nnscaler
