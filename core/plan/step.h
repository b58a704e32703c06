#pragma once

#include <string>
#include <vector>

#include "core/ops/layout.h"

namespace nnscaler {

/// One move of a redistribution, on one mesh axis.
enum class StepKind : uint8_t {
  kSlice,          ///< R -> S: keep the own part; no bytes
  kAllGather,      ///< S -> R
  kAllToAll,       ///< S(dim) -> S(to_dim)
  kAllReduce,      ///< P -> R
  kReduceScatter,  ///< P -> S
  kKeepFirst,      ///< R -> P: coordinate 0 keeps it, the others hold zeros; no bytes
  kPad,            ///< S -> P: the own part among zeros; no bytes
};

struct Step {
  StepKind kind = StepKind::kSlice;
  int axis = 0;
  int dim = -1;
  int to_dim = -1;
  Reduction reduction = Reduction::kSum;
  bool operator==(const Step&) const = default;
};
using Steps = std::vector<Step>;

/// "all-reduce", "slice", …
const char* step_name(StepKind kind);
/// Whether it sends anything.
bool communicates(StepKind kind);

}  // namespace nnscaler
