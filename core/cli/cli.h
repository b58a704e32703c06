#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace nnscaler {

/// One verb of the program, in a file of its own: core/cli/<name>.cpp.
struct Verb {
  const char* name;
  const char* help;     ///< One line.
  const char* example;  ///< A command that works.
  /// Declares the verb's options; what it returns runs it, after parsing, and gives the exit code.
  std::function<int()> (*add)(CLI::App& app);
};

/// Every verb, in the order of the help.
const std::vector<Verb>& verbs();

/// The whole program: parses `arguments` (without the program's name), runs the verb, and turns an
/// error into one line on standard error, "nnscaler: …". Returns the exit code: 0, or 1 for an
/// InputError (and for what is not supported), 2 for a wrong command line, 3 for an InfeasibleError,
/// 4 for a bug of ours.
int run_cli(const std::vector<std::string>& arguments);

}  // namespace nnscaler
