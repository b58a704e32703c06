#include <gtest/gtest.h>

#include <random>

#include "core/base/error.h"
#include "core/plan/plan.h"
#include "core/plan/problem.h"
#include "tests/plan/text_graph.h"

namespace nnscaler {
namespace {

PlanOptions options_for(const std::string& mesh) {
  PlanOptions options;
  options.mesh = parse_mesh(mesh);
  options.cluster = load_cluster("cpu");
  options.cluster_name = "cpu";
  return options;
}

const char* kMlp = R"(
x: f32[64, 32] input
w1: f32[128, 32] param
w2: f32[32, 128] param
h: f32[64, 128] = aten.linear.default(input=x, weight=w1) in fc1:Linear
a: f32[64, 128] = aten.relu.default(self=h)
y: f32[64, 32] = aten.linear.default(input=a, weight=w2) in fc2:Linear
s: f32[64, 32] = aten.mul.Tensor(self=y, other=y)
l: f32[] = aten.mean.default(self=s)
return l
)";

/// Cost of the cheapest plan by trying every choice of every operator and every layout of every
/// value that has a node.
Cost brute_force(const Prepared& prepared, const PlanOptions& options, int64_t* tried) {
  ProblemBuilder builder(prepared, options);
  std::vector<int> sizes;
  for (size_t i = 0; i < builder.problem.node_costs.size(); ++i) {
    sizes.push_back(builder.problem.num_labels(static_cast<int>(i)));
  }
  std::vector<int> labels(sizes.size(), 0);
  Plan plan;
  plan.options = options;
  plan.choices.resize(prepared.graph.operators.size());
  plan.constraint_of.assign(prepared.graph.operators.size(), -1);
  Cost best = -1;
  for (;;) {
    plan.values.clear();
    for (size_t i = 0; i < plan.choices.size(); ++i) {
      plan.choices[i] = builder.classes[static_cast<size_t>(builder.class_of[i])]
                            .choices[static_cast<size_t>(labels[i])];
    }
    for (size_t v = 0; v < prepared.graph.values.size(); ++v) {
      const int node = builder.value_nodes[v];
      if (node < 0) continue;
      plan.values.push_back(
          {static_cast<int>(v),
           builder.layout_of(builder.value_ports[v], labels[static_cast<size_t>(node)])});
    }
    // Not the search's tables: the plan is accounted for from scratch.
    const Cost cost = recompute(prepared, plan).cost;
    ++*tried;
    if (best < 0 || cost < best) best = cost;
    size_t i = 0;
    while (i < labels.size() && ++labels[i] == sizes[i]) labels[i++] = 0;
    if (i == labels.size()) return best;
  }
}

std::string draw_graph(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  std::string text = "x: f32[4, 6] input" + std::string(below(2) ? " grad\n" : "\n");
  std::vector<std::string> values = {"x"};
  const int num_ops = 2 + below(3);
  int params = 0;
  for (int i = 0; i < num_ops; ++i) {
    const std::string name = "v" + std::to_string(i);
    const auto any = [&] {
      return values[static_cast<size_t>(below(static_cast<int>(values.size())))];
    };
    switch (params < 1 ? 0 : below(4)) {
      case 0: {
        const std::string w = "w" + std::to_string(params++);
        text += w + ": f32[6, 6] param\n";
        text += name + ": f32[4, 6] = aten.linear.default(input=" + any() + ", weight=" + w + ")\n";
        break;
      }
      case 1:
        text += name + ": f32[4, 6] = aten.add.Tensor(self=" + any() + ", other=" + any() + ")\n";
        break;
      case 2:
        text += name + ": f32[4, 6] = aten.mul.Tensor(self=" + any() + ", other=" + any() + ")\n";
        break;
      default:
        text += name + ": f32[4, 6] = aten.relu.default(self=" + any() + ")\n";
    }
    values.push_back(name);
  }
  return text + "return " + values.back() + (below(2) ? ", " + values[values.size() / 2] : "") +
         "\n";
}

TEST(Search, EqualsBruteForceOnDrawnGraphs) {
  int64_t tried = 0;
  int compared = 0;
  for (uint32_t seed = 0; compared < 200 && seed < 2000; ++seed) {
    const Prepared prepared = prepare(parse_graph(draw_graph(seed)));
    const PlanOptions options = options_for(seed % 2 ? "tp=2" : "dp=3");
    const ProblemBuilder builder(prepared, options);
    double combinations = 1;
    for (size_t i = 0; i < builder.problem.node_costs.size(); ++i) {
      combinations *= builder.problem.num_labels(static_cast<int>(i));
    }
    if (combinations > 4000) continue;
    ++compared;
    const Plan plan = search(prepared, options);
    ASSERT_EQ(plan.cost, brute_force(prepared, options, &tried)) << "seed " << seed << "\n"
                                                                 << draw_graph(seed);
    ASSERT_EQ(plan.lower_bound, plan.cost);
  }
  EXPECT_EQ(compared, 200);
  RecordProperty("plans_tried", std::to_string(tried));
}

TEST(Search, PlansOnTwoAxesAddUp) {
  for (const char* mesh : {"dp=2,tp=2", "dp=4,tp=2", "a=2,b=1"}) {
    const Prepared prepared = prepare(parse_graph(kMlp));
    const Plan plan = search(prepared, options_for(mesh));
    EXPECT_EQ(plan.lower_bound, plan.cost);
    EXPECT_EQ(recompute(prepared, plan).cost, plan.cost);
  }
}

TEST(Search, PlanFileReadsBackAndIsDeterministic) {
  const Prepared prepared = prepare(parse_graph(kMlp));
  const PlanOptions options = options_for("dp=2,tp=2");
  const Plan plan = search(prepared, options);
  Plan named = plan;
  named.archive = "model.pt2";
  named.archive_digest = prepared.graph.digest;
  const std::string text = to_json(named, prepared);
  Plan again = search(prepare(parse_graph(kMlp)), options);
  again.archive = "model.pt2";
  again.archive_digest = prepared.graph.digest;
  EXPECT_EQ(to_json(again, prepared), text);
  const Plan read = plan_from_json(text, "plan.json", prepared);
  EXPECT_EQ(read.choices, plan.choices);
  EXPECT_EQ(read.redistributions.size(), plan.redistributions.size());
  for (size_t i = 0; i < read.redistributions.size(); ++i) {
    EXPECT_EQ(read.redistributions[i].forward, plan.redistributions[i].forward);
    EXPECT_EQ(read.redistributions[i].backward, plan.redistributions[i].backward);
  }
}

TEST(Search, RefusesAPlanOfAnotherArchive) {
  const Prepared prepared = prepare(parse_graph(kMlp));
  Plan plan = search(prepared, options_for("tp=2"));
  plan.archive = "old.pt2";
  plan.archive_digest = "0123";
  try {
    plan_from_json(to_json(plan, prepared), "plan.json", prepared);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()),
              "plan.json: was made for another archive (digest 0123, this one has " +
                  prepared.graph.digest +
                  "); plan this archive, or give the one that the plan was made for (old.pt2)");
  }
}

TEST(Search, ForcedPartitionsAreObeyedOrRefused) {
  const Prepared prepared = prepare(parse_graph(kMlp));
  PlanOptions options = options_for("tp=2");
  options.others_replicate = true;
  options.forced = {{0, {"n"}}, {1, {"auto"}}, {2, {"k"}}};
  const Plan plan = search(prepared, options);
  EXPECT_EQ(to_string(plan.choices[0][0], prepared.rules[0]), "n");
  EXPECT_EQ(to_string(plan.choices[2][0], prepared.rules[2]), "k");
  EXPECT_EQ(plan.choices[3][0].kind, ChoiceKind::kReplicate);
  options.forced = {{0, {"z"}}};
  try {
    search(prepared, options);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "torch.nn.functional.linear of fc1: \"z\" names no partition of it; its annotation is \"" +
            prepared.rules[0].annotation +
            "\" and on the mesh tp=2 it may be replicated or split along a (64), k (32), n (128)");
  }
}

TEST(Search, AlternativesHoldOneOperatorAndChooseTheRestAnew) {
  const Prepared prepared = prepare(parse_graph(kMlp));
  const Plan plan = search(prepared, options_for("tp=2"));
  for (int op = 0; op < static_cast<int>(prepared.graph.operators.size()); ++op) {
    Cost least = -1;
    for (const Alternative& alternative : alternatives(prepared, plan, OpId{op})) {
      if (least < 0 || alternative.cost < least) least = alternative.cost;
      if (alternative.choice == plan.choices[static_cast<size_t>(op)]) {
        EXPECT_EQ(alternative.cost, plan.cost);
      }
    }
    EXPECT_EQ(least, plan.cost);
  }
}

TEST(Search, MemoryBudgetIsMetOrRefused) {
  const Prepared prepared = prepare(parse_graph(R"(
x: f32[16, 1024] input
w1: f32[1024, 1024] param
w2: f32[1024, 1024] param
h: f32[16, 1024] = aten.linear.default(input=x, weight=w1) in fc1:Linear
a: f32[16, 1024] = aten.relu.default(self=h)
y: f32[16, 1024] = aten.linear.default(input=a, weight=w2) in fc2:Linear
l: f32[] = aten.sum.default(self=y)
return l
)"));
  PlanOptions options = options_for("tp=2");
  options.memory_bytes = int64_t{1} << 30;
  const Plan roomy = search(prepared, options);
  EXPECT_LE(roomy.memory.total(), options.memory_bytes);
  // Half of the states of both weights: 16 bytes an element.
  options.memory_bytes = int64_t{22} << 20;
  const Plan tight = search(prepared, options);
  EXPECT_LE(tight.memory.total(), options.memory_bytes);
  EXPECT_LE(tight.lower_bound, tight.cost);
  EXPECT_GE(tight.cost, roomy.cost);
  options.memory_bytes = int64_t{4} << 20;
  EXPECT_THROW(search(prepared, options), InfeasibleError);
}

}  // namespace
}  // namespace nnscaler
