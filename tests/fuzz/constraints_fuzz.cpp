#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/error.h"
#include "core/plan/constraints.h"

/// Reads a constraints file: rules, applied to an empty graph, or an InputError.
inline int fuzz_constraints(const uint8_t* data, size_t size) {
  using namespace nnscaler;
  try {
    const auto rules = parse_constraints(std::string(reinterpret_cast<const char*>(data), size),
                                         "constraints.yaml");
    const ModuleStack stack = {{"", 0, "pkg.Root"}, {"layers.0", 0, "pkg.Layer"}};
    for (const Constraint& rule : rules) {
      check(!rule.name.empty(), "a rule without a name was accepted");
      check(rule.replica_allowed || !rule.allowed_dims.empty(), "a rule that leaves nothing");
      match_module(rule.parent_module, stack);
    }
    match_constraints({}, {}, rules, {2}, {});
  } catch (const InputError&) {
  }
  return 0;
}

#ifdef NNSCALER_FUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fuzz_constraints(data, size);
}
#endif
