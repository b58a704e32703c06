#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/cli/cli.h"
#include "core/cli/session.h"

namespace nnscaler {

namespace {

struct Options {
  std::string archive, plan, output;
  bool json = false;
};

/// Programs of an earlier plan with more ranks would run beside the new ones.
void remove_other_ranks(const std::string& folder,
                        const std::map<std::string, std::string>& files) {
  for (int rank = static_cast<int>(files.size());; ++rank) {
    const std::string name = fmt::format("gencode{}.py", rank);
    std::error_code ignored;
    if (files.count(name)) continue;
    if (!std::filesystem::remove(std::filesystem::path(folder) / name, ignored)) return;
  }
}

int run(const Options& given) {
  const std::map<std::string, std::string> files =
      emit_plan(given.archive, read_file(given.plan), given.plan);
  std::error_code status;
  std::filesystem::create_directories(given.output, status);
  if (status)
    throw InputError(
        fmt::format("{}: is no directory and cannot be made: {}", given.output, status.message()));
  for (const auto& [name, text] : files)
    write_file((std::filesystem::path(given.output) / name).string(), text);
  remove_other_ranks(given.output, files);
  const std::string& text = files.at("gencode0.py");
  const auto lines = std::count(text.begin(), text.end(), '\n');
  if (given.json) {
    fmt::print("{}\n",
               nlohmann::ordered_json{
                   {"directory", given.output}, {"files", files.size()}, {"lines", lines}}
                   .dump());
  } else {
    fmt::print("wrote {} file{} to {}: gencode0.py has {} lines\n", files.size(),
               files.size() == 1 ? "" : "s", given.output, lines);
  }
  return 0;
}

}  // namespace

std::function<int()> add_emit(CLI::App& app) {
  auto given = std::make_shared<Options>();
  app.add_option("archive", given->archive, "model.pt2 that the plan was made for")->required();
  app.add_option("plan", given->plan, "plan.json")->required();
  app.add_option("-o,--output", given->output, "directory for gencode0.py, ...")->required();
  app.add_flag("--json", given->json, "one JSON object on standard output");
  return [given] { return run(*given); };
}

}  // namespace nnscaler
