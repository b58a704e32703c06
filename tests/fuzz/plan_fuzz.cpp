#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/lower/lower.h"
#include "core/plan/plan.h"
#include "tests/plan/text_graph.h"

namespace nnscaler {

/// The archive that the fuzzed plans are for.
inline const Prepared& fuzzed_graph() {
  static const Prepared prepared = prepare(parse_graph(R"(
    x: f32[8, 6] input
    w1: f32[12, 6] param
    b1: f32[12] param
    w2: f32[6, 12] param
    h: f32[8, 12] = aten.linear.default(input=x, weight=w1, bias=b1) in fc1:Linear
    a: f32[8, 12] = aten.relu.default(self=h)
    y: f32[8, 6] = aten.linear.default(input=a, weight=w2) in fc2:Linear
    s: f32[8, 6] = aten.mul.Tensor(self=y, other=y)
    z: f32[8, 6] = aten.add.Tensor(self=s, other=y)
    l: f32[] = aten.sum.default(self=z)
    return l, y
  )"));
  return prepared;
}

/// Valid plans for it: split in several ways, with every kind of redistribution that it can need.
inline std::vector<std::string> plan_seeds() {
  using Partitions = std::map<int, std::vector<std::string>>;
  const std::pair<const char*, Partitions> kPlans[] = {
      {"tp=2", {}},
      {"tp=2", {{0, {"n"}}, {1, {"auto"}}, {2, {"k"}}, {3, {"a"}}, {4, {"b"}}}},
      {"dp=2,tp=3", {{0, {"a", "n"}}, {2, {"a", "k"}}, {4, {"replicate", "b"}}}},
      {"dp=2,tp=1", {{0, {"a", "replicate"}}, {2, {"n", "replicate"}}, {5, {"a", "replicate"}}}},
  };
  std::vector<std::string> seeds;
  for (const auto& [mesh, partitions] : kPlans) {
    PlanOptions options;
    options.mesh = parse_mesh(mesh);
    options.cluster_name = "cpu";
    options.cluster = load_cluster("cpu");
    options.units = 2;
    options.forced = partitions;
    Plan plan = search(fuzzed_graph(), options);
    plan.archive = "model.pt2";
    plan.archive_digest = fuzzed_graph().graph.digest;
    seeds.push_back(to_json(plan, fuzzed_graph()));
    plan_from_json(seeds.back(), "plan.json", fuzzed_graph());
  }
  return seeds;
}

}  // namespace nnscaler

/// Reads and applies a plan: programs, or an InputError.
inline int fuzz_plan(const uint8_t* data, size_t size) {
  using namespace nnscaler;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const Prepared& prepared = fuzzed_graph();
  try {
    Plan plan = plan_from_json(text, "plan.json", prepared);
    recompute_modules_of(text, "plan.json");
    check(plan.choices.size() == prepared.graph.operators.size(), "an operator without a choice");
    static const Cluster cluster = load_cluster("cpu");
    plan.options.cluster = cluster;
    check(plan.memory.total() >= 0 && plan.gap() <= 1, "amounts out of range");
    check(recompute(prepared, plan).cost >= 0, "a cost out of range");
    lower(prepared, plan);
  } catch (const InputError&) {
  }
  return 0;
}

#ifdef NNSCALER_FUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fuzz_plan(data, size);
}
#endif
