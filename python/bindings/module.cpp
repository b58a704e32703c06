#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/cli/cli.h"
#include "core/cli/session.h"
#include "core/cost/cluster.h"
#include "core/version.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace nnscaler {
namespace {

void raise_as(const char* name, const char* what) {
  const nb::object type = nb::module_::import_("nnscaler.errors").attr(name);
  PyErr_SetString(type.ptr(), what);
}

std::string plan(const std::string& archive, const std::string& mesh, const std::string& cluster,
                 const std::string& constraints, const std::string& recompute_modules,
                 const std::string& optimizer, int64_t memory_bytes, int units, int microbatches,
                 bool inference, const std::map<int, std::vector<std::string>>& partitions,
                 bool others_replicate) {
  const nb::gil_scoped_release release;
  PlanOptions options;
  options.mesh = parse_mesh(mesh);
  options.cluster = load_cluster(cluster);
  options.cluster_name = cluster;
  options.constraints_path = constraints;
  if (!constraints.empty())
    options.constraints = parse_constraints(read_file(constraints), constraints);
  options.recompute_modules = recompute_modules;
  options.optimizer = optimizer;
  options.memory_bytes = memory_bytes;
  options.units = units;
  options.microbatches = microbatches;
  options.inference = inference;
  options.forced = partitions;
  options.others_replicate = others_replicate;
  const Prepared prepared = open_archive(archive, recompute_modules);
  return to_json(plan_archive(prepared, archive, options), prepared);
}

}  // namespace
}  // namespace nnscaler

NB_MODULE(_core, m) {
  using namespace nnscaler;
  m.doc() = "The C++ core of nnscaler: reads archives, plans, writes rank programs.";
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const InputError& error) {
      raise_as("InputError", error.what());
    } catch (const InfeasibleError& error) {
      raise_as("InfeasibleError", error.what());
    } catch (const UnsupportedError& error) {
      raise_as("UnsupportedError", error.what());
    } catch (const InternalError& error) {
      raise_as("InternalError", error.what());
    }
  });
  m.attr("__version__") = kVersion;
  m.def("plan", &plan, "archive"_a, nb::kw_only(), "mesh"_a, "cluster"_a, "constraints"_a = "",
        "recompute_modules"_a = "", "optimizer"_a = "adamw", "memory_bytes"_a = 0, "units"_a = 1,
        "microbatches"_a = 1, "inference"_a = false,
        "partitions"_a = std::map<int, std::vector<std::string>>(), "others_replicate"_a = false,
        "Searches a plan for an archive and returns the text of plan.json.");
  m.def("emit", &emit_plan, "archive"_a, "plan"_a, "name"_a = "plan.json",
        nb::call_guard<nb::gil_scoped_release>(),
        "Writes the rank programs of a plan (its text): file name -> Python source.");
  m.def(
      "emit_exposed",
      [](const std::string& archive, const std::string& plan_text, const std::string& name) {
        const nb::gil_scoped_release release;
        std::vector<std::string> descriptions;
        auto files = emit_exposed(archive, plan_text, name, descriptions);
        return std::pair(std::move(files), std::move(descriptions));
      },
      "archive"_a, "plan"_a, "name"_a = "plan.json",
      "Like emit, but the programs return every operator's first result, whole; also says which "
      "operators.");
  m.def(
      "constants",
      [](const std::string& archive) {
        nb::list result;
        for (const ArchiveConstant& constant : archive_constants(archive)) {
          result.append(nb::make_tuple(constant.name, constant.dtype, constant.shape,
                                       nb::bytes(constant.bytes.data(), constant.bytes.size())));
        }
        return result;
      },
      "archive"_a,
      "Tensor literals of an archive: name, dtype, shape and contiguous bytes of each.");
  m.def("operators", &archive_operators, "archive"_a, "recompute_modules"_a = "",
        nb::call_guard<nb::gil_scoped_release>(),
        "The operators of an archive as policies need them, as JSON.");
  m.def(
      "main", [](const std::vector<std::string>& arguments) { return run_cli(arguments); },
      "arguments"_a, nb::call_guard<nb::gil_scoped_release>(),
      "Runs the command line of the core; returns its exit status.");
}
