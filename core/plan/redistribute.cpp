#include "core/plan/redistribute.h"

#include <algorithm>
#include <set>

#include "core/base/error.h"

namespace nnscaler {

const char* step_name(StepKind kind) {
  switch (kind) {
    case StepKind::kSlice:
      return "slice";
    case StepKind::kAllGather:
      return "all-gather";
    case StepKind::kAllToAll:
      return "all-to-all";
    case StepKind::kAllReduce:
      return "all-reduce";
    case StepKind::kReduceScatter:
      return "reduce-scatter";
    case StepKind::kKeepFirst:
      return "keep-first";
    case StepKind::kPad:
      return "pad";
  }
  throw InternalError("internal error: unknown step");
}

bool communicates(StepKind kind) {
  return kind == StepKind::kAllGather || kind == StepKind::kAllToAll ||
         kind == StepKind::kAllReduce || kind == StepKind::kReduceScatter;
}

Redistributor::Placements Redistributor::values(const Layout& layout) {
  Placements result;
  for (const AxisLayout& axis : layout) result.push_back(axis.value);
  return result;
}

Redistributor::Placements Redistributor::gradients(const Layout& layout) {
  Placements result;
  for (const AxisLayout& axis : layout) result.push_back(axis.gradient);
  return result;
}

Redistributor::Table& Redistributor::table(const Value& value) {
  Key key;
  for (const Extent& extent : value.shape)
    key.shape.push_back(extent.is_symbolic() ? -1 : extent.value);
  key.bytes = value.bytes();
  Table& table = tables_[key];
  if (table.shape.empty()) {
    table.shape = key.shape;
    table.bytes = key.bytes;
  }
  return table;
}

std::map<Redistributor::Placements, Redistributor::Path> Redistributor::search(
    const Table& table, const Placements& from) const {
  const int num_axes = static_cast<int>(mesh_.axes.size());
  const int rank = static_cast<int>(table.shape.size());
  const auto size = [&](int axis) { return mesh_.axes[static_cast<size_t>(axis)].size; };
  const auto innermost = [&](const Placements& at, int axis, int dim) {
    for (int inner = axis + 1; inner < num_axes; ++inner) {
      if (at[static_cast<size_t>(inner)] == Placement::shard(dim)) return false;
    }
    return true;
  };
  const auto divides = [&](const Placements& at, int axis, int dim) {
    int64_t parts = size(axis);
    for (int other = 0; other < num_axes; ++other) {
      if (other != axis && at[static_cast<size_t>(other)] == Placement::shard(dim))
        parts *= size(other);
    }
    const int64_t extent = table.shape[static_cast<size_t>(dim)];
    return extent > 0 && extent % parts == 0;
  };
  // Bytes of the tensor that one group along `axis` holds together.
  const auto group_bytes = [&](const Placements& at, int axis) {
    int64_t bytes = table.bytes;
    for (int other = 0; other < num_axes; ++other) {
      if (other != axis && at[static_cast<size_t>(other)].is_shard()) bytes /= size(other);
    }
    return bytes;
  };

  std::map<Placements, Path> done;
  std::map<Placements, Path> open = {{from, Path{}}};
  const auto worse = [](const Path& a, const Path& b) {
    return std::pair(a.cost, a.steps.size()) > std::pair(b.cost, b.steps.size());
  };
  while (!open.empty()) {
    auto best = open.begin();
    for (auto it = open.begin(); it != open.end(); ++it) {
      if (worse(best->second, it->second)) best = it;
    }
    const Placements at = best->first;
    const Path path = best->second;
    open.erase(best);
    const auto relax = [&](const Step& step, Placement to) {
      Placements next = at;
      next[static_cast<size_t>(step.axis)] = to;
      if (done.count(next)) return;
      Path longer = path;
      longer.steps.push_back(step);
      const int64_t bytes = group_bytes(at, step.axis);
      const auto communicate = [&](Collective kind) {
        longer.cost += collective_ps(cluster_, mesh_, {step.axis}, kind, bytes);
        longer.sent_bytes += collective_sent_bytes(size(step.axis), kind, bytes);
      };
      switch (step.kind) {
        case StepKind::kAllGather:
          communicate(Collective::kAllGather);
          break;
        case StepKind::kAllToAll:
          communicate(Collective::kAllToAll);
          break;
        case StepKind::kAllReduce:
          communicate(Collective::kAllReduce);
          break;
        case StepKind::kReduceScatter:
          communicate(Collective::kReduceScatter);
          break;
        case StepKind::kSlice:
        case StepKind::kKeepFirst:
        case StepKind::kPad:
          longer.cost += compute_ps(cluster_, 0, bytes, DType::kFloat32);
          break;
      }
      const auto it = open.find(next);
      if (it == open.end()) {
        open.emplace(next, std::move(longer));
      } else if (worse(it->second, longer)) {
        it->second = std::move(longer);
      }
    };
    for (int axis = 0; axis < num_axes; ++axis) {
      if (size(axis) == 1) continue;
      const Placement now = at[static_cast<size_t>(axis)];
      if (now.is_replicate()) {
        for (int dim = 0; dim < rank; ++dim) {
          if (innermost(at, axis, dim) && divides(at, axis, dim)) {
            relax({StepKind::kSlice, axis, dim}, Placement::shard(dim));
          }
        }
        relax({StepKind::kKeepFirst, axis}, Placement::partial());
      } else if (now.is_shard()) {
        if (!innermost(at, axis, now.dim())) continue;
        relax({StepKind::kAllGather, axis, now.dim()}, Placement::replicate());
        relax({StepKind::kPad, axis, now.dim()}, Placement::partial());
        for (int dim = 0; dim < rank; ++dim) {
          if (dim != now.dim() && innermost(at, axis, dim) && divides(at, axis, dim)) {
            relax({StepKind::kAllToAll, axis, now.dim(), dim}, Placement::shard(dim));
          }
        }
      } else {
        relax({StepKind::kAllReduce, axis, -1, -1, now.reduction()}, Placement::replicate());
        for (int dim = 0; dim < rank; ++dim) {
          if (innermost(at, axis, dim) && divides(at, axis, dim)) {
            relax({StepKind::kReduceScatter, axis, dim, -1, now.reduction()},
                  Placement::shard(dim));
          }
        }
      }
    }
    done.emplace(at, path);
  }
  return done;
}

const Redistributor::Path& Redistributor::path(const Value& value, const Placements& from,
                                               const Placements& to) {
  Table& entries = table(value);
  auto it = entries.paths.find(from);
  if (it == entries.paths.end()) it = entries.paths.emplace(from, search(entries, from)).first;
  const auto found = it->second.find(to);
  check(found != it->second.end(), "no redistribution of " + value.name);
  return found->second;
}

Cost Redistributor::cost(const Value& value, const Layout& from, const Layout& to) {
  if (from == to) return 0;
  Cost total = path(value, values(from), values(to)).cost;
  if (value.requires_grad) total += path(value, gradients(to), gradients(from)).cost;
  return total;
}

}  // namespace nnscaler
