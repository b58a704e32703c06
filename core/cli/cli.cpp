#include "core/cli/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <new>
#include <ostream>

#include "core/base/error.h"
#include "core/version.h"

namespace nnscaler {

const std::vector<AddVerb>& verbs() {
  static const std::vector<AddVerb> kVerbs = {add_inspect};
  return kVerbs;
}

int run_cli(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  Context context{out, err};
  CLI::App app("Turns a PyTorch model written for one device into a program for many.", "nnscaler");
  app.set_version_flag("--version", std::string("nnscaler ") + kVersion);
  app.require_subcommand(1);
  app.footer("nnscaler VERB --help tells more of a verb.");
  for (const AddVerb add : verbs()) add(app, context);

  // One line, whatever a message holds.
  const auto fail = [&](ExitCode code, std::string what) {
    std::ranges::replace(what, '\n', ' ');
    err << "nnscaler: " << what << '\n';
    return code;
  };
  try {
    // CLI11 takes arguments last first.
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));
    out.flush();
    return kSuccess;
  } catch (const CLI::Success& success) {
    // --help and --version.
    app.exit(success, out, err);
    return kSuccess;
  } catch (const CLI::ParseError& error) {
    const auto chosen = app.get_subcommands();
    const std::string verb = chosen.empty() ? "" : " " + chosen.front()->get_name();
    return fail(kUsageWrong, error.what() + ("; see nnscaler" + verb + " --help"));
  } catch (const InputError& error) {
    return fail(kInputWrong, error.what());
  } catch (const UnsupportedError& error) {
    return fail(kInputWrong, error.what());
  } catch (const InfeasibleError& error) {
    return fail(kInfeasible, error.what());
  } catch (const std::bad_alloc&) {
    return fail(kInternalBug, "out of memory");
  } catch (const InternalError& error) {
    return fail(kInternalBug, error.what());
  } catch (const std::exception& error) {
    return fail(kInternalBug, std::string("internal error: ") + error.what());
  }
}

}  // namespace nnscaler
