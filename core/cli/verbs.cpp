#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/cli/cli.h"
#include "core/version.h"

namespace nnscaler {

std::function<int()> add_inspect(CLI::App& app);
std::function<int()> add_operators(CLI::App& app);
std::function<int()> add_devices(CLI::App& app);
std::function<int()> add_plan(CLI::App& app);
std::function<int()> add_explain(CLI::App& app);
std::function<int()> add_diff(CLI::App& app);
std::function<int()> add_check(CLI::App& app);
std::function<int()> add_emit(CLI::App& app);

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> list = {
      {"inspect", "print a model as exported: modules, operators, sizes",
       "nnscaler inspect model.pt2", add_inspect},
      {"plan", "search a plan for a model",
       "nnscaler plan model.pt2 --mesh dp=4,tp=2 --cluster h100-80gb -o plan.json", add_plan},
      {"explain", "say what a plan does and why",
       "nnscaler explain plan.json --operator layers.0.mlp", add_explain},
      {"diff", "compare two plans", "nnscaler diff a.json b.json", add_diff},
      {"check", "recompute a plan's cost, memory and bound from the archive",
       "nnscaler check plan.json", add_check},
      {"emit", "write the rank programs of a plan", "nnscaler emit model.pt2 plan.json -o gen/",
       add_emit},
      {"operators", "list the operators that have a partition rule", "nnscaler operators",
       add_operators},
      {"devices", "list the devices described in the box", "nnscaler devices", add_devices},
  };
  return list;
}

namespace {

/// CLI11 reports one problem over several lines; people and scripts get one.
std::string one_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

/// What is wrong with the arguments, where CLI11 says it badly; else its own words.
std::string usage_mistake(const CLI::App& app, const std::vector<std::string>& arguments,
                          const CLI::ParseError& error) {
  if (arguments.empty()) return "no verb is given";
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const auto unknown = [](const std::string& word, const char* what,
                          const std::vector<std::string>& known) {
    return fmt::format("\"{}\" is no {}{}", word, what, did_you_mean(word, known));
  };
  if (chosen.empty()) {
    std::vector<std::string> names;
    for (const Verb& verb : verbs()) names.push_back(verb.name);
    const bool option = arguments[0].starts_with('-');
    return unknown(arguments[0], option ? "option" : "verb",
                   option ? std::vector<std::string>() : names);
  }
  if (!chosen.empty() && dynamic_cast<const CLI::ExtrasError*>(&error)) {
    std::vector<std::string> names;
    for (const CLI::Option* option : chosen[0]->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
    std::string first;
    for (const std::string& word : chosen[0]->remaining()) {
      if (word.starts_with('-')) return unknown(word, "option", names);
      if (first.empty()) first = word;
    }
    return fmt::format("\"{}\" is one argument too many", first);
  }
  return one_line(error.what());
}

/// One line a mistake; a file's mistakes are reported together.
int fail(int status, const std::string& message) {
  std::fflush(stdout);
  for (const std::string& line : split(strip(message), '\n'))
    std::fprintf(stderr, "nnscaler: %s\n", line.c_str());
  return status;
}

}  // namespace

int run_cli(const std::vector<std::string>& arguments) {
  CLI::App app("nnscaler: from a PyTorch model written for one device to a program for many",
               "nnscaler");
  app.set_version_flag("--version", std::string("nnscaler ") + kVersion);
  app.require_subcommand(1);
  std::function<int()> chosen;
  const CLI::Validator not_empty(
      [](std::string& text) { return std::string(text.empty() ? "is empty" : ""); }, "");
  for (const Verb& verb : verbs()) {
    CLI::App* sub = app.add_subcommand(verb.name, verb.help);
    sub->footer(std::string("Example:\n  ") + verb.example);
    sub->callback([&chosen, run = verb.add(*sub)] { chosen = run; });
    for (CLI::Option* option : sub->get_options()) {
      if (option->get_items_expected_max() > 0) option->check(not_empty);
    }
  }
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::string verb;
    for (const CLI::App* sub : app.get_subcommands()) verb = " " + sub->get_name();
    return fail(2, usage_mistake(app, arguments, error) + " (see nnscaler" + verb + " --help)");
  }
  try {
    const int status = chosen();
    errno = 0;
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
      throw InputError(fmt::format("standard output: cannot be written: {}", std::strerror(errno)));
    }
    return status;
  } catch (const InfeasibleError& error) {
    return fail(3, error.what());
  } catch (const InternalError& error) {
    return fail(4, std::string(error.what()) + "; please report it with the command that you ran");
  } catch (const Error& error) {
    return fail(1, error.what());
  } catch (const std::exception& error) {
    return fail(4, std::string("internal error: ") + error.what() +
                       "; please report it with the command that you ran");
  }
}

}  // namespace nnscaler
