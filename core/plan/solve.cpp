#include "core/plan/solve.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "core/base/error.h"

namespace nnscaler {

namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdULL;
  return hash ^ (hash >> 33);
}

uint64_t content_hash(const CostMatrix& matrix) {
  uint64_t hash = mix(static_cast<uint64_t>(matrix.rows), static_cast<uint64_t>(matrix.cols));
  for (const Cost cost : matrix.data) hash = mix(hash, static_cast<uint64_t>(cost));
  return hash;
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define NNSCALER_VECTORISE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define NNSCALER_VECTORISE
#endif

/// out[j] = min(out[j], base + row[j])
NNSCALER_VECTORISE void min_plus_row(Cost* out, const Cost* row, Cost base, int size) {
  for (int j = 0; j < size; ++j) {
    const Cost candidate = base + row[j];
    out[j] = candidate < out[j] ? candidate : out[j];
  }
}

constexpr Cost kInfinite = std::numeric_limits<Cost>::max() / 4;

}  // namespace

size_t MatrixPool::KeyHash::operator()(const Key& key) const {
  return mix(mix(mix(1, static_cast<uint64_t>(key.a)), static_cast<uint64_t>(key.b)),
             static_cast<uint64_t>(key.c));
}

int MatrixPool::intern(CostMatrix matrix) {
  const uint64_t hash = content_hash(matrix);
  const auto [begin, end] = by_content_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const CostMatrix& other = *matrices_[static_cast<size_t>(it->second)];
    if (other.rows == matrix.rows && other.cols == matrix.cols && other.data == matrix.data) {
      return it->second;
    }
  }
  const int id = size();
  matrices_.push_back(std::make_unique<CostMatrix>(std::move(matrix)));
  by_content_.emplace(hash, id);
  return id;
}

int MatrixPool::transpose(int id) {
  if (const auto it = transposes_.find(id); it != transposes_.end()) return it->second;
  const CostMatrix& from = (*this)[id];
  CostMatrix to{from.cols, from.rows, std::vector<Cost>(from.data.size())};
  for (int i = 0; i < from.rows; ++i) {
    for (int j = 0; j < from.cols; ++j) {
      to.data[static_cast<size_t>(j) * static_cast<size_t>(from.rows) + static_cast<size_t>(i)] =
          from.at(i, j);
    }
  }
  const int result = intern(std::move(to));
  transposes_[id] = result;
  transposes_[result] = id;
  return result;
}

int MatrixPool::add(int a, int b) {
  const Key key{std::min(a, b), std::max(a, b), 0};
  if (const auto it = sums_.find(key); it != sums_.end()) return it->second;
  CostMatrix sum = (*this)[a];
  const CostMatrix& other = (*this)[b];
  check(sum.rows == other.rows && sum.cols == other.cols, "matrices of different size");
  for (size_t i = 0; i < sum.data.size(); ++i) sum.data[i] += other.data[i];
  return sums_[key] = intern(std::move(sum));
}

bool MatrixPool::separable(int id) {
  if (const auto it = separable_.find(id); it != separable_.end()) return it->second;
  const CostMatrix& matrix = (*this)[id];
  bool result = true;
  for (int i = 1; i < matrix.rows && result; ++i) {
    const Cost shift = matrix.at(i, 0) - matrix.at(0, 0);
    for (int j = 1; j < matrix.cols; ++j) {
      if (matrix.at(i, j) - matrix.at(0, j) != shift) {
        result = false;
        break;
      }
    }
  }
  return separable_[id] = result;
}

int MatrixPool::product(int a, int c, int b) {
  ++num_products_;
  const Key key{a, b, c};
  if (const auto it = products_.find(key); it != products_.end()) return it->second;
  const CostMatrix& left = (*this)[a];
  const CostMatrix& middle = (*this)[c];
  const CostMatrix& right = (*this)[b];
  CostMatrix result{
      left.rows, right.cols,
      std::vector<Cost>(static_cast<size_t>(left.rows) * static_cast<size_t>(right.cols),
                        kInfinite)};
  for (int i = 0; i < left.rows; ++i) {
    Cost* out = result.data.data() + static_cast<size_t>(i) * static_cast<size_t>(right.cols);
    for (int k = 0; k < left.cols; ++k) {
      min_plus_row(out,
                   right.data.data() + static_cast<size_t>(k) * static_cast<size_t>(right.cols),
                   left.at(i, k) + middle.data[static_cast<size_t>(k)], right.cols);
    }
  }
  return products_[key] = intern(std::move(result));
}

int MatrixPool::reduce(int a, int c) {
  const Key key{a, c, 0};
  if (const auto it = reductions_.find(key); it != reductions_.end()) return it->second;
  const CostMatrix& matrix = (*this)[a];
  const CostMatrix& costs = (*this)[c];
  CostMatrix result{1, matrix.rows, std::vector<Cost>(static_cast<size_t>(matrix.rows), kInfinite)};
  for (int i = 0; i < matrix.rows; ++i) {
    for (int k = 0; k < matrix.cols; ++k) {
      result.data[static_cast<size_t>(i)] =
          std::min(result.data[static_cast<size_t>(i)],
                   matrix.at(i, k) + costs.data[static_cast<size_t>(k)]);
    }
  }
  return reductions_[key] = intern(std::move(result));
}

Cost LabelProblem::evaluate(const std::vector<int>& labels) const {
  Cost total = 0;
  for (size_t node = 0; node < node_costs.size(); ++node) {
    total += (*pool)[node_costs[node]].data[static_cast<size_t>(labels[node])];
  }
  for (const Edge& edge : edges) {
    total += (*pool)[edge.matrix].at(labels[static_cast<size_t>(edge.a)],
                                     labels[static_cast<size_t>(edge.b)]);
  }
  return total;
}

namespace {

/// A cost table over several nodes, the last one fastest.
struct Factor {
  std::vector<int> nodes;
  std::vector<Cost> table;
};

/// Reduces a problem step by step, and undoes the steps to decode. Copied by branch and bound.
class Reducer {
 public:
  Reducer(const LabelProblem& problem, const SolveOptions& options)
      : pool_(*problem.pool), options_(options), nodes_(problem.node_costs.size()) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      nodes_[i].costs = problem.node_costs[i];
      nodes_[i].kept.resize(static_cast<size_t>(pool_[nodes_[i].costs].cols));
      std::iota(nodes_[i].kept.begin(), nodes_[i].kept.end(), 0);
    }
    for (const LabelProblem::Edge& edge : problem.edges) {
      if (edge.a == edge.b) {
        CostMatrix diagonal{1, num_labels(edge.a), {}};
        for (int i = 0; i < diagonal.cols; ++i)
          diagonal.data.push_back(pool_[edge.matrix].at(i, i));
        add_costs(edge.a, pool_.intern(std::move(diagonal)));
      } else {
        add_edge(edge.a, edge.b, edge.matrix);
      }
    }
    for (size_t i = 0; i < nodes_.size(); ++i) touch(static_cast<int>(i));
  }

  /// Exhausts every exact reduction; dominance only where the others stall.
  void run() {
    drain();
    while (num_alive() > 0 && dominate()) drain();
  }

  int num_alive() const {
    return static_cast<int>(
        std::count_if(nodes_.begin(), nodes_.end(), [](const Node& n) { return n.alive; }));
  }

  std::vector<int> alive() const {
    std::vector<int> result;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].alive) result.push_back(static_cast<int>(i));
    }
    return result;
  }

  Cost constant() const { return constant_; }

  /// Keeps only one label of a node.
  void fix(int node, int label) {
    keep(node, {label});
    touch(node);
    run();
  }

  /// Removes what is left by elimination with tables; false when they would not fit.
  bool eliminate_core() {
    std::vector<int> order;
    if (!elimination_order(order)) return false;
    std::map<int, std::vector<Factor>> buckets;
    std::vector<Factor> factors;
    std::vector<int> rank(nodes_.size(), -1);
    for (size_t i = 0; i < order.size(); ++i)
      rank[static_cast<size_t>(order[i])] = static_cast<int>(i);
    const auto place = [&](Factor factor) {
      int first = factor.nodes[0];
      for (const int node : factor.nodes) {
        if (rank[static_cast<size_t>(node)] < rank[static_cast<size_t>(first)]) first = node;
      }
      buckets[first].push_back(std::move(factor));
    };
    for (const int node : order) {
      place({{node}, pool_[nodes_[static_cast<size_t>(node)].costs].data});
      for (const auto& [other, matrix] : nodes_[static_cast<size_t>(node)].edges) {
        if (node < other) place({{node, other}, pool_[matrix].data});
      }
    }
    for (const int node : order) {
      Tabled step;
      step.node = node;
      step.factors = std::move(buckets[node]);
      std::vector<int> scope;
      for (const Factor& factor : step.factors) {
        for (const int other : factor.nodes) {
          if (other != node && std::find(scope.begin(), scope.end(), other) == scope.end())
            scope.push_back(other);
        }
      }
      std::sort(scope.begin(), scope.end());
      int64_t entries = 1;
      for (const int other : scope) entries *= num_labels(other);
      Factor result{scope, std::vector<Cost>(static_cast<size_t>(entries), kInfinite)};
      std::vector<int> labels(nodes_.size(), 0);
      for (int64_t index = 0; index < entries; ++index) {
        int64_t rest = index;
        for (size_t i = scope.size(); i-- > 0;) {
          const int size = num_labels(scope[i]);
          labels[static_cast<size_t>(scope[i])] = static_cast<int>(rest % size);
          rest /= size;
        }
        for (int label = 0; label < num_labels(node); ++label) {
          labels[static_cast<size_t>(node)] = label;
          Cost total = 0;
          for (const Factor& factor : step.factors) total += lookup(factor, labels);
          result.table[static_cast<size_t>(index)] =
              std::min(result.table[static_cast<size_t>(index)], total);
        }
      }
      if (scope.empty()) {
        constant_ += result.table[0];
      } else {
        place(std::move(result));
      }
      tabled_.push_back(std::move(step));
    }
    for (const int node : order) nodes_[static_cast<size_t>(node)].alive = false;
    return true;
  }

  /// Labels of all nodes from those of the nodes that are alive (indices into what is kept).
  std::vector<int> decode(const std::vector<int>& alive_labels) const {
    std::vector<int> labels(nodes_.size(), 0);
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].alive) labels[i] = nodes_[i].kept[static_cast<size_t>(alive_labels[i])];
    }
    std::vector<int> local(nodes_.size(), 0);
    for (size_t i = tabled_.size(); i-- > 0;) {
      const Tabled& step = tabled_[i];
      const auto node = static_cast<size_t>(step.node);
      Cost best = kInfinite;
      int best_label = 0;
      for (int label = 0; label < num_labels(step.node); ++label) {
        local[node] = label;
        Cost total = 0;
        for (const Factor& factor : step.factors) total += lookup(factor, local);
        if (total < best) {
          best = total;
          best_label = label;
        }
      }
      local[node] = best_label;
      labels[node] = nodes_[node].kept[static_cast<size_t>(best_label)];
    }
    for (size_t i = trail_.size(); i-- > 0;) {
      const Removed& step = trail_[i];
      const CostMatrix& costs = pool_[step.costs];
      Cost best = kInfinite;
      int best_label = 0;
      for (int label = 0; label < costs.cols; ++label) {
        Cost total = costs.data[static_cast<size_t>(label)];
        for (const auto& [other, matrix, kept] : step.edges) {
          const auto it =
              std::lower_bound(kept->begin(), kept->end(), labels[static_cast<size_t>(other)]);
          total += pool_[matrix].at(label, static_cast<int>(it - kept->begin()));
        }
        if (total < best) {
          best = total;
          best_label = label;
        }
      }
      labels[static_cast<size_t>(step.node)] = (*step.kept)[static_cast<size_t>(best_label)];
    }
    return labels;
  }

  struct Bounded {
    Cost bound = 0;
    std::vector<int> labels;
    Cost cost = 0;
  };

  /// Sequential dual ascent on what is alive: a bound and a decoded labelling of the alive nodes,
  /// constant included.
  Bounded ascend(int max_sweeps) const {
    const std::vector<int> order = alive();
    std::vector<int> position(nodes_.size(), -1);
    for (size_t i = 0; i < order.size(); ++i)
      position[static_cast<size_t>(order[i])] = static_cast<int>(i);
    struct Edge {
      int a, b;
      const CostMatrix* costs;
      std::vector<Cost> to_a, to_b;
    };
    std::vector<Edge> edges;
    std::vector<std::vector<int>> incident(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      for (const auto& [other, matrix] : nodes_[static_cast<size_t>(order[i])].edges) {
        const int j = position[static_cast<size_t>(other)];
        if (static_cast<int>(i) < j) {
          incident[i].push_back(static_cast<int>(edges.size()));
          incident[static_cast<size_t>(j)].push_back(static_cast<int>(edges.size()));
          edges.push_back({static_cast<int>(i), j, &pool_[matrix],
                           std::vector<Cost>(static_cast<size_t>(pool_[matrix].rows), 0),
                           std::vector<Cost>(static_cast<size_t>(pool_[matrix].cols), 0)});
        }
      }
    }
    const auto gathered = [&](size_t i) {
      std::vector<Cost> theta = pool_[nodes_[static_cast<size_t>(order[i])].costs].data;
      for (const int e : incident[i]) {
        const Edge& edge = edges[static_cast<size_t>(e)];
        const std::vector<Cost>& message = edge.a == static_cast<int>(i) ? edge.to_a : edge.to_b;
        for (size_t k = 0; k < theta.size(); ++k) theta[k] += message[k];
      }
      return theta;
    };
    // One pass in the given direction: each node sends an equal share of its min-marginal along the
    // arcs ahead of it.
    const auto pass = [&](bool ahead) {
      for (size_t step = 0; step < order.size(); ++step) {
        const size_t i = ahead ? step : order.size() - 1 - step;
        int before = 0;
        int after = 0;
        for (const int e : incident[i]) {
          const Edge& edge = edges[static_cast<size_t>(e)];
          const int other = edge.a == static_cast<int>(i) ? edge.b : edge.a;
          ((other > static_cast<int>(i)) == ahead ? after : before)++;
        }
        if (after == 0) continue;
        const std::vector<Cost> theta = gathered(i);
        const int share = std::max(before, after);
        for (const int e : incident[i]) {
          Edge& edge = edges[static_cast<size_t>(e)];
          const bool is_a = edge.a == static_cast<int>(i);
          const int other = is_a ? edge.b : edge.a;
          if ((other > static_cast<int>(i)) != ahead) continue;
          std::vector<Cost>& in = is_a ? edge.to_a : edge.to_b;
          std::vector<Cost>& out = is_a ? edge.to_b : edge.to_a;
          std::vector<Cost> next(out.size(), kInfinite);
          for (size_t k = 0; k < theta.size(); ++k) {
            const Cost base = theta[k] / share - in[k];
            for (size_t j = 0; j < next.size(); ++j) {
              const Cost cost = is_a ? edge.costs->at(static_cast<int>(k), static_cast<int>(j))
                                     : edge.costs->at(static_cast<int>(j), static_cast<int>(k));
              next[j] = std::min(next[j], base + cost);
            }
          }
          const Cost least = *std::min_element(next.begin(), next.end());
          for (Cost& value : next) value -= least;
          out = std::move(next);
        }
      }
    };
    const auto bound = [&]() {
      Cost total = constant_;
      for (size_t i = 0; i < order.size(); ++i) {
        const std::vector<Cost> theta = gathered(i);
        total += *std::min_element(theta.begin(), theta.end());
      }
      for (const Edge& edge : edges) {
        Cost least = kInfinite;
        for (int i = 0; i < edge.costs->rows; ++i) {
          for (int j = 0; j < edge.costs->cols; ++j) {
            least = std::min(least, edge.costs->at(i, j) - edge.to_a[static_cast<size_t>(i)] -
                                        edge.to_b[static_cast<size_t>(j)]);
          }
        }
        total += least;
      }
      return total;
    };
    const auto decoded = [&]() {
      std::vector<int> labels(nodes_.size(), 0);
      Cost total = constant_;
      for (size_t i = 0; i < order.size(); ++i) {
        std::vector<Cost> real = pool_[nodes_[static_cast<size_t>(order[i])].costs].data;
        std::vector<Cost> theta = real;
        for (const int e : incident[i]) {
          const Edge& edge = edges[static_cast<size_t>(e)];
          const bool is_a = edge.a == static_cast<int>(i);
          const int other = is_a ? edge.b : edge.a;
          for (size_t k = 0; k < theta.size(); ++k) {
            if (other < static_cast<int>(i)) {
              const int chosen = labels[static_cast<size_t>(order[static_cast<size_t>(other)])];
              const Cost cost = is_a ? edge.costs->at(static_cast<int>(k), chosen)
                                     : edge.costs->at(chosen, static_cast<int>(k));
              theta[k] += cost;
              real[k] += cost;
            } else {
              theta[k] += (is_a ? edge.to_a : edge.to_b)[k];
            }
          }
        }
        const auto best =
            static_cast<size_t>(std::min_element(theta.begin(), theta.end()) - theta.begin());
        labels[static_cast<size_t>(order[i])] = static_cast<int>(best);
        total += real[best];
      }
      return std::pair(total, labels);
    };
    Bounded result;
    result.bound = std::numeric_limits<Cost>::min();
    result.cost = kInfinite;
    Cost previous = result.bound;
    for (int sweep = 0; sweep < max_sweeps; ++sweep) {
      pass(true);
      pass(false);
      result.bound = std::max(result.bound, bound());
      const auto [cost, labels] = decoded();
      if (cost < result.cost) {
        result.cost = cost;
        result.labels = labels;
      }
      if (result.cost <= result.bound) break;
      if (sweep % 10 == 9) {
        if (result.bound - previous <= (result.cost - result.bound) / 1000) break;
        previous = result.bound;
      }
    }
    return result;
  }

  /// The alive node with the most neighbours (then the fewest labels, then the lowest index).
  int hub() const {
    int best = -1;
    for (const int node : alive()) {
      if (best < 0) {
        best = node;
        continue;
      }
      const size_t degree = nodes_[static_cast<size_t>(node)].edges.size();
      const size_t best_degree = nodes_[static_cast<size_t>(best)].edges.size();
      if (degree > best_degree || (degree == best_degree && num_labels(node) < num_labels(best)))
        best = node;
    }
    return best;
  }

  int num_labels(int node) const { return pool_[nodes_[static_cast<size_t>(node)].costs].cols; }

 private:
  struct Node {
    bool alive = true;
    int costs = 0;  // vector in the pool
    std::vector<std::pair<int, int>>
        edges;              // (other, matrix with this node's labels as rows), by other
    std::vector<int> kept;  // original label of each label
  };
  struct RemovedEdge {
    int other;
    int matrix;                                    // rows: the removed node
    std::shared_ptr<const std::vector<int>> kept;  // original labels of the other node at that time
  };
  struct Removed {
    int node;
    int costs;
    std::shared_ptr<const std::vector<int>> kept;
    std::vector<RemovedEdge> edges;
  };
  struct Tabled {
    int node;
    std::vector<Factor> factors;
  };

  Node& node(int index) { return nodes_[static_cast<size_t>(index)]; }

  void touch(int index) {
    if (queued_.size() < nodes_.size()) queued_.resize(nodes_.size(), false);
    if (!queued_[static_cast<size_t>(index)]) {
      queued_[static_cast<size_t>(index)] = true;
      queue_.push_back(index);
    }
  }

  void add_costs(int index, int costs) { node(index).costs = pool_.add(node(index).costs, costs); }

  void set_half(int from, int to, int matrix) {
    auto& edges = node(from).edges;
    const auto it = std::lower_bound(edges.begin(), edges.end(),
                                     std::pair(to, std::numeric_limits<int>::min()));
    if (it != edges.end() && it->first == to) {
      it->second = matrix;
    } else {
      edges.insert(it, {to, matrix});
    }
  }

  void drop_half(int from, int to) {
    auto& edges = node(from).edges;
    edges.erase(std::lower_bound(edges.begin(), edges.end(),
                                 std::pair(to, std::numeric_limits<int>::min())));
  }

  std::optional<int> edge(int a, int b) const {
    const auto& edges = nodes_[static_cast<size_t>(a)].edges;
    const auto it =
        std::lower_bound(edges.begin(), edges.end(), std::pair(b, std::numeric_limits<int>::min()));
    if (it != edges.end() && it->first == b) return it->second;
    return std::nullopt;
  }

  /// Adds `matrix` (rows: a) to the edge between a and b; a separable sum goes into the nodes
  /// instead.
  void add_edge(int a, int b, int matrix) {
    if (const auto existing = edge(a, b)) {
      matrix = pool_.add(*existing, matrix);
      drop_half(a, b);
      drop_half(b, a);
    }
    if (pool_.separable(matrix)) {
      const CostMatrix& costs = pool_[matrix];
      CostMatrix rows{1, costs.rows, {}};
      CostMatrix cols{1, costs.cols, {}};
      for (int i = 0; i < costs.rows; ++i) rows.data.push_back(costs.at(i, 0));
      for (int j = 0; j < costs.cols; ++j) cols.data.push_back(costs.at(0, j) - costs.at(0, 0));
      add_costs(a, pool_.intern(std::move(rows)));
      add_costs(b, pool_.intern(std::move(cols)));
    } else {
      set_half(a, b, matrix);
      set_half(b, a, pool_.transpose(matrix));
    }
    touch(a);
    touch(b);
  }

  void remove(int index) {
    Removed step;
    step.node = index;
    step.costs = node(index).costs;
    step.kept = std::make_shared<const std::vector<int>>(node(index).kept);
    for (const auto& [other, matrix] : node(index).edges) {
      step.edges.push_back(
          {other, matrix, std::make_shared<const std::vector<int>>(node(other).kept)});
      drop_half(other, index);
      touch(other);
    }
    node(index).alive = false;
    node(index).edges.clear();
    trail_.push_back(std::move(step));
  }

  void drain() {
    while (!queue_.empty()) {
      const int index = queue_.front();
      queue_.pop_front();
      queued_[static_cast<size_t>(index)] = false;
      if (!node(index).alive) continue;
      const auto edges = node(index).edges;
      const int costs = node(index).costs;
      if (edges.empty()) {
        constant_ += *std::min_element(pool_[costs].data.begin(), pool_[costs].data.end());
        remove(index);
      } else if (edges.size() == 1) {
        const int other = edges[0].first;
        const int reduced = pool_.reduce(pool_.transpose(edges[0].second), costs);
        remove(index);
        add_costs(other, reduced);
      } else if (edges.size() == 2) {
        const int product = pool_.product(pool_.transpose(edges[0].second), costs, edges[1].second);
        remove(index);
        add_edge(edges[0].first, edges[1].first, product);
      }
      // A node of one label needs no rule of its own: its edges have one row, are separable, and
      // vanish.
    }
  }

  /// Keeps the given labels (ascending) of a node and of its edges.
  void keep(int index, const std::vector<int>& labels) {
    const CostMatrix& old = pool_[node(index).costs];
    CostMatrix costs{1, static_cast<int>(labels.size()), {}};
    std::vector<int> kept;
    for (const int label : labels) {
      costs.data.push_back(old.data[static_cast<size_t>(label)]);
      kept.push_back(node(index).kept[static_cast<size_t>(label)]);
    }
    node(index).costs = pool_.intern(std::move(costs));
    node(index).kept = std::move(kept);
    const auto edges = node(index).edges;
    for (const auto& [other, matrix] : edges) {
      const CostMatrix& from = pool_[matrix];
      CostMatrix to{static_cast<int>(labels.size()), from.cols, {}};
      for (const int label : labels) {
        const auto begin = from.data.begin() + static_cast<std::ptrdiff_t>(label) * from.cols;
        to.data.insert(to.data.end(), begin, begin + from.cols);
      }
      drop_half(index, other);
      drop_half(other, index);
      add_edge(index, other, pool_.intern(std::move(to)));
    }
  }

  /// Removes labels that another label of the same node is never worse than; true if any.
  bool dominate() {
    std::vector<int> order = alive();
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return num_labels(a) < num_labels(b); });
    for (const int index : order) {
      const int count = num_labels(index);
      const CostMatrix& costs = pool_[node(index).costs];
      std::vector<int> labels;
      std::vector<bool> gone(static_cast<size_t>(count), false);
      for (int i = 0; i < count; ++i) {
        for (int j = 0; j < count && !gone[static_cast<size_t>(i)]; ++j) {
          if (i == j || gone[static_cast<size_t>(j)]) continue;
          // Is j never worse than i?
          Cost worst = costs.data[static_cast<size_t>(j)] - costs.data[static_cast<size_t>(i)];
          for (const auto& [other, matrix] : node(index).edges) {
            const CostMatrix& edge_costs = pool_[matrix];
            Cost most = -kInfinite;
            for (int k = 0; k < edge_costs.cols; ++k) {
              most = std::max(most, edge_costs.at(j, k) - edge_costs.at(i, k));
            }
            worst += most;
          }
          if (worst < 0 || (worst == 0 && j < i)) gone[static_cast<size_t>(i)] = true;
        }
        if (!gone[static_cast<size_t>(i)]) labels.push_back(i);
      }
      if (static_cast<int>(labels.size()) < count) {
        keep(index, labels);
        touch(index);
        return true;
      }
    }
    return false;
  }

  /// Min-fill order of the alive nodes; false when a table would be larger than allowed.
  bool elimination_order(std::vector<int>& order) const {
    std::map<int, std::vector<int>> neighbours;
    for (const int index : alive()) {
      for (const auto& [other, matrix] : nodes_[static_cast<size_t>(index)].edges)
        neighbours[index].push_back(other);
    }
    double total = 0;
    while (!neighbours.empty()) {
      int best = -1;
      double best_size = 0;
      for (const auto& [index, others] : neighbours) {
        double size = num_labels(index);
        for (const int other : others) size *= num_labels(other);
        if (best < 0 || size < best_size) {
          best = index;
          best_size = size;
        }
      }
      total += best_size;
      if (best_size > static_cast<double>(options_.max_table_entries) ||
          total > 16 * static_cast<double>(options_.max_table_entries)) {
        return false;
      }
      const std::vector<int> others = neighbours[best];
      for (const int a : others) {
        auto& list = neighbours[a];
        list.erase(std::find(list.begin(), list.end(), best));
        for (const int b : others) {
          if (a != b && std::find(list.begin(), list.end(), b) == list.end()) list.push_back(b);
        }
      }
      neighbours.erase(best);
      order.push_back(best);
    }
    return true;
  }

  Cost lookup(const Factor& factor, const std::vector<int>& labels) const {
    size_t index = 0;
    for (const int other : factor.nodes) {
      index = index * static_cast<size_t>(num_labels(other)) +
              static_cast<size_t>(labels[static_cast<size_t>(other)]);
    }
    return factor.table[index];
  }

  MatrixPool& pool_;
  const SolveOptions& options_;
  std::vector<Node> nodes_;
  std::deque<int> queue_;
  std::vector<bool> queued_;
  std::vector<Removed> trail_;
  std::vector<Tabled> tabled_;
  Cost constant_ = 0;
};

/// Depth-first branch and bound on hubs.
struct Search {
  const LabelProblem& problem;
  const SolveOptions& options;
  std::vector<int> best_labels;
  Cost best = kInfinite;
  Cost open_bound = kInfinite;  // least bound of what was given up
  int branches = 0;
  std::string method = "reduction";

  void offer(std::vector<int> labels) {
    const Cost cost = problem.evaluate(labels);
    if (cost < best) {
      best = cost;
      best_labels = std::move(labels);
    }
  }

  void run(Reducer reducer) {
    ++branches;
    if (reducer.num_alive() == 0) {
      if (reducer.constant() < best)
        offer(reducer.decode(std::vector<int>(problem.node_costs.size(), 0)));
      return;
    }
    if (reducer.eliminate_core()) {
      if (branches == 1) method = "elimination";
      if (reducer.constant() < best)
        offer(reducer.decode(std::vector<int>(problem.node_costs.size(), 0)));
      return;
    }
    const Reducer::Bounded bounded = reducer.ascend(options.max_sweeps);
    offer(reducer.decode(bounded.labels));
    if (branches == 1) method = "dual ascent";
    if (bounded.bound >= best) return;
    if (branches >= options.max_branches) {
      open_bound = std::min(open_bound, bounded.bound);
      return;
    }
    method = "branch and bound";
    const int node = reducer.hub();
    for (int label = 0; label < reducer.num_labels(node); ++label) {
      Reducer child = reducer;
      child.fix(node, label);
      run(std::move(child));
    }
  }
};

}  // namespace

Solution solve(const LabelProblem& problem, const SolveOptions& options) {
  Solution solution;
  Reducer reducer(problem, options);
  reducer.run();
  solution.core_nodes = reducer.num_alive();
  solution.num_products = problem.pool->num_products();
  solution.num_distinct_products = problem.pool->num_distinct_products();
  Search search{problem, options, {}, kInfinite, kInfinite, 0, "reduction"};
  search.run(std::move(reducer));
  solution.labels = std::move(search.best_labels);
  solution.cost = search.best;
  solution.lower_bound = std::min(search.best, search.open_bound);
  solution.branches = search.branches;
  solution.method = search.method;
  return solution;
}

}  // namespace nnscaler
