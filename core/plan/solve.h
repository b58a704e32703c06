#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace nnscaler {

/// Cost of a label or of a pair of labels, in picoseconds.
using Cost = int64_t;

/// A dense matrix of costs, rows by columns, row-major. A vector is a matrix of one row.
struct CostMatrix {
  int rows = 0;
  int cols = 0;
  std::vector<Cost> data;
  Cost at(int row, int col) const {
    return data[static_cast<size_t>(row) * static_cast<size_t>(cols) + static_cast<size_t>(col)];
  }
};

/// Matrices by content: equal ones are stored once and have one id, so that a product of two is
/// computed once however often it occurs. This is what makes equal layers free.
class MatrixPool {
 public:
  int intern(CostMatrix matrix);
  const CostMatrix& operator[](int id) const { return *matrices_[static_cast<size_t>(id)]; }
  int size() const { return static_cast<int>(matrices_.size()); }
  int transpose(int id);
  int add(int a, int b);
  /// Whether every entry is a row's term plus a column's term.
  bool separable(int id);
  /// min over k of A[i,k] + c[k] + B[k,j].
  int product(int a, int c, int b);
  /// min over k of A[i,k] + c[k], as a vector.
  int reduce(int a, int c);
  int num_products() const { return num_products_; }
  int num_distinct_products() const { return static_cast<int>(products_.size()); }

 private:
  struct Key {
    int64_t a, b, c;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  std::vector<std::unique_ptr<CostMatrix>> matrices_;
  std::unordered_multimap<uint64_t, int> by_content_;
  std::unordered_map<Key, int, KeyHash> products_, reductions_, sums_;
  std::unordered_map<int, int> transposes_;
  std::unordered_map<int, bool> separable_;
  int num_products_ = 0;
};

/// Choose one label for each node so that the sum of node and edge costs is least.
struct LabelProblem {
  struct Edge {
    int a = 0;       ///< Rows of the matrix.
    int b = 0;       ///< Columns.
    int matrix = 0;  ///< In the pool.
  };
  std::shared_ptr<MatrixPool> pool = std::make_shared<MatrixPool>();
  std::vector<int>
      node_costs;  ///< A vector of the pool for each node: one entry a label, at least one.
  std::vector<Edge> edges;

  int num_labels(int node) const { return (*pool)[node_costs[static_cast<size_t>(node)]].cols; }
  /// Sum of the chosen costs.
  Cost evaluate(const std::vector<int>& labels) const;
};

struct SolveOptions {
  int64_t max_table_entries =
      int64_t{1} << 22;     ///< Largest table of an exact elimination of what reductions leave.
  int max_branches = 2000;  ///< Sub-problems of branch and bound.
  int max_sweeps = 200;     ///< Of dual ascent, for each sub-problem.
};

struct Solution {
  std::vector<int> labels;
  Cost cost = 0;
  Cost lower_bound = 0;           ///< Proven; equal to `cost` when the solution is optimal.
  int core_nodes = 0;             ///< Nodes that reductions left.
  int num_products = 0;           ///< Degree-two eliminations, …
  int num_distinct_products = 0;  ///< … of which these were computed.
  int branches = 0;
  std::string method;  ///< How the core was closed: "reduction", "elimination", "dual ascent",
                       ///< "branch and bound".
};

/// Solves exactly by reduction where that leaves nothing: single labels are absorbed, separable
/// edges deleted, nodes of degree 0, 1 and 2 eliminated, dominated labels removed. What remains is
/// eliminated with tables if they fit, else bounded by sequential dual ascent (TRW-S; Kolmogorov,
/// PAMI 2006, with integer messages, so that the bound is exact) and closed by branch and bound.
/// Ties are broken towards the lowest label. The result depends on nothing else.
Solution solve(const LabelProblem& problem, const SolveOptions& options = {});

}  // namespace nnscaler
