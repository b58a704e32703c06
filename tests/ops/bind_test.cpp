#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/base/text.h"
#include "core/ops/rule.h"
#include "tests/golden.h"
#include "tests/ops/graph_text.h"

namespace nnscaler {
namespace {

std::string list(const std::vector<int>& numbers) {
  std::vector<std::string> parts;
  for (const int number : numbers) parts.push_back(std::to_string(number));
  return join(parts, ", ");
}

std::string name_of(const BoundRule& rule, int name) {
  return rule.names[static_cast<size_t>(name)].name;
}

/// Everything that a rule says and its annotation does not.
std::string describe(const Graph& graph, const Operator& op) {
  const BoundRule rule = bind_rule(graph, op);
  std::string text = rule.signature + ": " + rule.annotation + "\n";
  if (!rule.known) text += "  unknown\n";
  for (size_t n = 0; n < rule.names.size(); ++n) {
    const BoundName& name = rule.names[n];
    std::vector<std::string> facts;
    if (!name.splittable) facts.push_back("not split: " + name.why_not);
    if (name.partial && name.reduction == Reduction::kMax) facts.push_back("a maximum of parts");
    if (name.partial && name.reduction == Reduction::kMin) facts.push_back("a minimum of parts");
    if (name.rescale) facts.push_back("divided by the parts");
    if (!name.keyword.empty()) facts.push_back("calls " + rule.callee + " with " + name.keyword);
    if (!name.once.empty()) facts.push_back("enters once: " + list(name.once));
    if (static_cast<int>(n) == rule.divide_name) facts.push_back("divides " + rule.divide_argument);
    if (!facts.empty())
      text +=
          "  " + name.name + " = " + std::to_string(name.extent) + ": " + join(facts, "; ") + "\n";
  }
  for (size_t i = 0; i < rule.inputs.size(); ++i) {
    std::vector<std::string> names;
    for (const int name : rule.inputs[i].no_gradient_sum) names.push_back(name_of(rule, name));
    if (!names.empty())
      text += "  input " + std::to_string(i) + ": no gradient sum for " + join(names, ", ") + "\n";
  }
  std::vector<std::string> groups;
  for (const LinearIn& group : rule.linear) groups.push_back("{" + list(group.inputs) + "}");
  if (!groups.empty()) text += "  linear in " + join(groups, ", ") + "\n";
  for (const InnerCollective& inner : rule.inner) {
    static constexpr const char* kKinds[] = {"all-reduce", "all-gather", "reduce-scatter",
                                             "all-to-all", "broadcast"};
    text += "  inside, along " + name_of(rule, inner.name) + ": " +
            kKinds[static_cast<size_t>(inner.kind)] + " of " + std::to_string(inner.bytes) +
            " bytes";
    for (const int name : inner.divided_by) text += ", less along " + name_of(rule, name);
    text += "\n";
  }
  if (!rule.size_argument.empty()) text += "  size follows: " + rule.size_argument + "\n";
  std::string flags;
  if (rule.random) flags += " random";
  if (rule.view) flags += " view";
  if (rule.fused) flags += " fused";
  if (rule.mutates) flags += " in-place";
  if (!rule.mutated_inputs.empty()) flags += " writes " + list(rule.mutated_inputs);
  if (!flags.empty()) text += "  is" + flags + "\n";
  if (!rule.saved_inputs.empty() || !rule.saved_outputs.empty()) {
    text += "  keeps inputs " + list(rule.saved_inputs) + "; outputs " + list(rule.saved_outputs) +
            "\n";
  }
  text += "  flops " + std::to_string(static_cast<int64_t>(rule.forward_flops)) + " + " +
          std::to_string(static_cast<int64_t>(rule.backward_flops)) + "\n";
  return text;
}

std::string describe_all(const std::string& input) {
  const Graph graph = GraphText(input).graph;
  std::string text;
  for (const Operator& op : graph.operators) text += describe(graph, op);
  return text;
}

TEST(Bind, Products) { run_golden("ops/bind/products.txt", describe_all); }
TEST(Bind, Pointwise) { run_golden("ops/bind/pointwise.txt", describe_all); }
TEST(Bind, Shapes) { run_golden("ops/bind/shapes.txt", describe_all); }
TEST(Bind, Reductions) { run_golden("ops/bind/reductions.txt", describe_all); }
TEST(Bind, Norms) { run_golden("ops/bind/norms.txt", describe_all); }
TEST(Bind, Losses) { run_golden("ops/bind/losses.txt", describe_all); }
TEST(Bind, Attention) { run_golden("ops/bind/attention.txt", describe_all); }
TEST(Bind, Indexing) { run_golden("ops/bind/indexing.txt", describe_all); }
TEST(Bind, Convolutions) { run_golden("ops/bind/convolutions.txt", describe_all); }
TEST(Bind, Creation) { run_golden("ops/bind/creation.txt", describe_all); }
TEST(Bind, Leaves) { run_golden("ops/bind/leaves.txt", describe_all); }

std::string signatures(const std::string& input) {
  const Graph graph = GraphText(input).graph;
  std::string text;
  for (const Operator& op : graph.operators) text += join(signatures_of(graph, op), " ") + "\n";
  return text;
}

TEST(Bind, Signatures) { run_golden("ops/bind/signatures.txt", signatures); }

/// A call of any shape binds to something whose names fit its operands, or to nothing.
void check_binds(const Graph& graph, const Operator& op) {
  const BoundRule rule = bind_rule(graph, op);
  const auto fits = [&](const BoundOperand& operand, const Value& value) {
    if (value.is_symbol) return;
    ASSERT_EQ(operand.dims.size(), value.shape.size()) << rule.annotation;
    for (size_t d = 0; d < operand.dims.size(); ++d) {
      for (const int name : operand.dims[d]) {
        ASSERT_GE(name, 0);
        ASSERT_LT(static_cast<size_t>(name), rule.names.size());
        const BoundName& bound = rule.names[static_cast<size_t>(name)];
        if (bound.splittable) {
          EXPECT_EQ(value.shape[d].value % bound.extent, 0) << op.target << ": " << rule.annotation;
        }
      }
    }
  };
  const std::vector<ValueId> inputs = op.tensor_inputs();
  ASSERT_EQ(rule.inputs.size(), inputs.size());
  ASSERT_EQ(rule.outputs.size(), op.outputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) fits(rule.inputs[i], graph.value(inputs[i]));
  for (size_t o = 0; o < op.outputs.size(); ++o) {
    if (op.outputs[o].valid()) fits(rule.outputs[o], graph.value(op.outputs[o]));
  }
  for (const LinearIn& group : rule.linear) {
    for (const int i : group.inputs) EXPECT_LT(static_cast<size_t>(i), inputs.size()) << op.target;
  }
  for (const int i : rule.saved_inputs)
    EXPECT_LT(static_cast<size_t>(i), inputs.size()) << op.target;
  for (const int i : rule.mutated_inputs)
    EXPECT_LT(static_cast<size_t>(i), inputs.size()) << op.target;
  for (const int o : rule.saved_outputs)
    EXPECT_LT(static_cast<size_t>(o), op.outputs.size()) << op.target;
}

/// Archives are untrusted: operators come with any arguments and shapes.
TEST(Bind, NeverRaises) {
  std::mt19937 random(1);
  const auto pick = [&](int count) {
    return static_cast<int>(random() % static_cast<unsigned>(count));
  };
  const std::vector<std::string> names = {"self",
                                          "input",
                                          "other",
                                          "weight",
                                          "bias",
                                          "dim",
                                          "indices",
                                          "index",
                                          "tensors",
                                          "query",
                                          "key",
                                          "value",
                                          "target",
                                          "size",
                                          "mat1",
                                          "mat2",
                                          "src",
                                          "values",
                                          "dims",
                                          "shape",
                                          "pad",
                                          "groups",
                                          "dim0",
                                          "dim1",
                                          "vec2",
                                          "end",
                                          "num_classes",
                                          "batch1",
                                          "batch2",
                                          "equation",
                                          "normalized_shape",
                                          "num_groups",
                                          "repeats",
                                          "keepdim",
                                          "reduction",
                                          "running_mean",
                                          "running_var",
                                          "attn_mask",
                                          "enable_gqa",
                                          "source",
                                          "destination",
                                          "dims_self",
                                          "dims_other"};
  for (const TableRow& row : operator_table()) {
    if (row.target.empty()) continue;
    for (int round = 0; round < 60; ++round) {
      Graph graph;
      const auto tensor = [&] {
        Value value;
        value.name = "v";
        const DType types[] = {DType::kFloat32, DType::kInt64, DType::kBool, DType::kComplex64};
        value.dtype = types[pick(4)];
        value.is_symbol = pick(20) == 0;
        for (int d = value.is_symbol ? 0 : pick(6); d > 0; --d) {
          const int64_t lengths[] = {0, 1, 2, 3, 4, 6, -1};
          value.shape.push_back({lengths[pick(7)], pick(8) == 0 ? "2*s0" : ""});
          value.strides.push_back({pick(7), ""});
        }
        graph.values.push_back(value);
        return ValueId{static_cast<int32_t>(graph.values.size()) - 1};
      };
      Operator op;
      op.target = row.target;
      for (int i = pick(6); i > 0; --i) {
        Argument argument;
        // "self", "input" or what the rule asks for, first.
        argument.name = names[static_cast<size_t>(pick(static_cast<int>(names.size())))];
        if (i == 1 || pick(3) == 0) argument.name = names[static_cast<size_t>(pick(9))];
        const int kind = pick(8);
        if (kind < 4) argument.value = tensor();
        if (kind == 4) argument.value = TensorList{tensor(), ValueId(), tensor()};
        if (kind == 5) argument.value = static_cast<int64_t>(pick(9) - 4);
        if (kind == 6)
          argument.value = std::vector<SymInt>{{pick(9) - 4, ValueId()}, {pick(3), ValueId()}};
        if (kind == 7 && pick(2) == 0)
          argument.value = std::string(pick(2) ? "a...b,bc->a" : "->,.");
        op.args.push_back(std::move(argument));
      }
      for (int o = pick(4); o > 0; --o) op.outputs.push_back(pick(9) ? tensor() : ValueId());
      ASSERT_NO_THROW(check_binds(graph, op)) << op.target << " in round " << round;
      if (testing::Test::HasFailure()) return;
    }
  }
}

/// Where "input,dim" of a constraint points.
TEST(Bind, UserInputs) {
  const Graph graph = GraphText(R"(
    w: f32[100, 8] param
    i: i64[4, 16] input
    e: f32[4, 16, 8] = aten.embedding.default(weight=w, indices=i)
    y: f32[4, 16, 8] = aten.rsub.Scalar(self=e, other=1.0)
  )")
                          .graph;
  const BoundRule embedding = bind_rule(graph, graph.operators[0]);
  ASSERT_EQ(embedding.user_inputs.size(), 2u);
  EXPECT_EQ(embedding.annotation, "a b, n+ e -> a b e");
  EXPECT_EQ(name_of(embedding, embedding.user_inputs[0][0][0]), "a");
  EXPECT_EQ(name_of(embedding, embedding.user_inputs[1][0][0]), "n");
  EXPECT_EQ(name_of(embedding, embedding.inputs[0].dims[0][0]), "n");
  // 1.0 - e: the number is the user's input 0.
  const BoundRule difference = bind_rule(graph, graph.operators[1]);
  ASSERT_EQ(difference.user_inputs.size(), 2u);
  EXPECT_TRUE(difference.user_inputs[0].empty());
  EXPECT_EQ(difference.user_inputs[1].size(), 3u);
}

TEST(Bind, KnownSignaturesAreSortedAndUnique) {
  const std::vector<std::string> known = known_signatures();
  EXPECT_TRUE(std::is_sorted(known.begin(), known.end()));
  EXPECT_EQ(std::adjacent_find(known.begin(), known.end()), known.end());
  EXPECT_TRUE(std::binary_search(known.begin(), known.end(), "cube.runtime.function.embedding"));
  EXPECT_FALSE(operator_table().empty());
}

}  // namespace
}  // namespace nnscaler
