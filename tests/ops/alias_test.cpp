#include "core/ops/alias.h"

#include <gtest/gtest.h>

#include "core/base/text.h"
#include "tests/golden.h"
#include "tests/ops/graph_text.h"

namespace nnscaler {
namespace {

/// The operators after resolve_aliases, those that are pinned marked with an exclamation mark.
std::string resolve(const std::string& input) {
  Graph graph = GraphText(input).graph;
  const std::vector<bool> pinned = resolve_aliases(graph);
  std::string text;
  for (size_t i = 0; i < graph.operators.size(); ++i) {
    const Operator& op = graph.operators[i];
    std::vector<std::string> made, read;
    for (const ValueId id : op.outputs) made.push_back(graph.value(id).name);
    for (const ValueId id : op.tensor_inputs()) read.push_back(graph.value(id).name);
    text += std::string(pinned[i] ? "! " : "  ") + join(made, ", ") + " = " + op.target + "(" +
            join(read, ", ") + ")\n";
  }
  std::vector<std::string> outputs;
  for (const ValueId id : graph.outputs) outputs.push_back(graph.value(id).name);
  return text + "  return " + join(outputs, ", ") + "\n";
}

TEST(Alias, Resolves) { run_golden("ops/alias/resolves.txt", resolve); }

/// Written without a gradient being recorded, a tensor keeps its history.
TEST(Alias, NoGradWriteStays) {
  Graph graph = GraphText(R"(
    x: f32[4] input grad
    h: f32[4] = aten.sin.default(self=x)
    a: f32[4] = aten.clamp_.default(self=h, max=1.0)
    y: f32[4] = aten.cos.default(self=h)
  )")
                    .graph;
  Region no_grad;
  no_grad.enabled = false;
  graph.regions.push_back(no_grad);
  EXPECT_EQ(analyse_aliases(graph).simple.size(), 1u);
  graph.operators[1].region = 0;
  const AliasInfo info = analyse_aliases(graph);
  EXPECT_TRUE(info.simple.empty());
  EXPECT_EQ(info.pinned, (std::vector<bool>{true, true, true}));
}

TEST(Alias, NothingIsWritten) {
  Graph graph = GraphText("x: f32[4] input\ny: f32[4] = aten.relu.default(self=x)").graph;
  const AliasInfo info = analyse_aliases(graph);
  EXPECT_TRUE(info.simple.empty());
  EXPECT_EQ(info.pinned, std::vector<bool>{false});
}

}  // namespace
}  // namespace nnscaler
