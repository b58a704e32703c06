#include "core/plan/solve.h"

#include <gtest/gtest.h>

#include <random>

namespace nnscaler {
namespace {

struct Drawn {
  LabelProblem problem;
  std::vector<int> sizes;
};

/// A random problem; few distinct costs, so that ties and dominated labels occur.
Drawn draw(uint32_t seed, int max_nodes, int max_labels, double density) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  Drawn drawn;
  const int nodes = 1 + below(max_nodes);
  const int range = seed % 3 == 0 ? 4 : 1000;
  for (int i = 0; i < nodes; ++i) {
    drawn.sizes.push_back(1 + below(max_labels));
    CostMatrix costs{1, drawn.sizes.back(), {}};
    for (int k = 0; k < costs.cols; ++k) costs.data.push_back(below(range));
    drawn.problem.node_costs.push_back(drawn.problem.pool->intern(std::move(costs)));
  }
  for (int a = 0; a < nodes; ++a) {
    for (int b = a + 1; b < nodes; ++b) {
      if (below(1000) >= static_cast<int>(density * 1000)) continue;
      CostMatrix costs{
          drawn.sizes[static_cast<size_t>(a)], drawn.sizes[static_cast<size_t>(b)], {}};
      for (int k = 0; k < costs.rows * costs.cols; ++k) costs.data.push_back(below(range));
      const int matrix = drawn.problem.pool->intern(std::move(costs));
      if (below(2) == 0) {
        drawn.problem.edges.push_back({a, b, matrix});
      } else {
        drawn.problem.edges.push_back({b, a, drawn.problem.pool->transpose(matrix)});
      }
    }
  }
  return drawn;
}

Cost brute_force(const Drawn& drawn) {
  std::vector<int> labels(drawn.sizes.size(), 0);
  Cost best = drawn.problem.evaluate(labels);
  for (;;) {
    size_t i = 0;
    while (i < labels.size() && ++labels[i] == drawn.sizes[i]) labels[i++] = 0;
    if (i == labels.size()) return best;
    best = std::min(best, drawn.problem.evaluate(labels));
  }
}

TEST(Solve, EqualsBruteForce) {
  for (uint32_t seed = 0; seed < 600; ++seed) {
    const Drawn drawn = draw(seed, 8, 4, 0.2 + 0.6 * (seed % 5) / 4.0);
    const Cost optimum = brute_force(drawn);
    const Solution solution = solve(drawn.problem);
    ASSERT_EQ(solution.cost, optimum) << "seed " << seed;
    ASSERT_EQ(solution.lower_bound, optimum) << "seed " << seed;
    ASSERT_EQ(drawn.problem.evaluate(solution.labels), optimum) << "seed " << seed;
  }
}

TEST(Solve, DualAscentAndBranchingEqualBruteForce) {
  SolveOptions options;
  options.max_table_entries = 1;  // no elimination with tables
  bool branched = false;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    const Drawn drawn = draw(seed, 8, 4, 0.9);
    const Solution solution = solve(drawn.problem, options);
    ASSERT_EQ(solution.cost, brute_force(drawn)) << "seed " << seed;
    ASSERT_EQ(solution.lower_bound, solution.cost) << "seed " << seed;
    branched |= solution.method == "branch and bound";
  }
  EXPECT_TRUE(branched);
}

TEST(Solve, BoundHoldsWhenBranchingIsCutShort) {
  SolveOptions options;
  options.max_table_entries = 1;
  options.max_branches = 1;
  bool open = false;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    const Drawn drawn = draw(seed, 8, 4, 0.9);
    const Solution solution = solve(drawn.problem, options);
    const Cost optimum = brute_force(drawn);
    ASSERT_LE(solution.lower_bound, optimum) << "seed " << seed;
    ASSERT_GE(solution.cost, optimum) << "seed " << seed;
    open |= solution.lower_bound < solution.cost;
  }
  EXPECT_TRUE(open);
}

TEST(Solve, EqualLayersShareTheirProducts) {
  LabelProblem problem;
  std::mt19937 random(7);
  const auto matrix = [&](int rows, int cols) {
    CostMatrix costs{rows, cols, {}};
    for (int k = 0; k < rows * cols; ++k) costs.data.push_back(static_cast<Cost>(random() % 100));
    return problem.pool->intern(std::move(costs));
  };
  const int node = matrix(1, 5);
  const int skip = matrix(5, 5);
  const int in = matrix(5, 5);
  const int out = matrix(5, 5);
  for (int layer = 0; layer < 200; ++layer) {
    const int first = 2 * layer;
    problem.node_costs.push_back(node);
    problem.node_costs.push_back(node);
    problem.edges.push_back({first, first + 1, in});
    problem.edges.push_back({first + 1, first + 2, out});
    problem.edges.push_back({first, first + 2, skip});
  }
  problem.node_costs.push_back(node);
  const Solution solution = solve(problem);
  EXPECT_EQ(solution.lower_bound, solution.cost);
  EXPECT_GE(solution.num_products, 200);
  EXPECT_LE(solution.num_distinct_products, 210);
}

}  // namespace
}  // namespace nnscaler
