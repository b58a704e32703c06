#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace nnscaler {

/// Where a verb writes: results to `out` (one JSON object with `--json`), progress to `err`.
struct Context {
  std::ostream& out;
  std::ostream& err;
};

/// Adds one verb to the program. Each has a file of its own, core/cli/<verb>.cpp.
using AddVerb = void (*)(CLI::App& app, Context& context);

void add_inspect(CLI::App& app, Context& context);

/// Every verb, in the order of the help. A new one is added here and nowhere else.
const std::vector<AddVerb>& verbs();

enum ExitCode : int {
  kSuccess = 0,
  kInputWrong = 1,   ///< InputError, UnsupportedError
  kUsageWrong = 2,   ///< The command line itself
  kInfeasible = 3,   ///< InfeasibleError
  kInternalBug = 4,  ///< InternalError, or anything else
};

/// The whole program: parses `args` (without the program's name), runs the verb, and turns errors
/// into one line on `err`, "nnscaler: …", and an exit code.
int run_cli(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace nnscaler
