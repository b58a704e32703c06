#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace nnscaler {

/// A verb of the command line. `add` declares its options on `app` and returns what runs it: an
/// exit status.
struct Verb {
  const char* name;
  const char* help;     ///< One line.
  const char* example;  ///< Shown by --help.
  std::function<int()> (*add)(CLI::App& app);
};

/// The verbs, in the order of the help. A new one is a file core/cli/<verb>.cpp and a line in
/// verbs.cpp.
const std::vector<Verb>& verbs();

/// Runs the command line (without the program's name). Results go to standard output, progress and
/// one line for an error to standard error. Returns 0, 1 for wrong input, 2 for wrong usage, 3 when
/// no plan exists, 4 for a bug of ours.
int run_cli(const std::vector<std::string>& arguments);

}  // namespace nnscaler
