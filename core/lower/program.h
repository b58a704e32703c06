#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/graph/graph.h"
#include "core/ops/layout.h"
#include "core/plan/step.h"

namespace nnscaler {

/// What an operator with target "nnscaler.redistribute" does. Its one argument is the input.
struct Redistribution {
  Steps forward;
  Steps backward;  ///< Applied to the gradient of the output, in order.
  Layout from, to;
  std::string reason;         ///< One sentence for the comment: why it is there.
  int64_t bytes_forward = 0;  ///< Sent by one rank.
  int64_t bytes_backward = 0;
};

/// How a parameter or buffer rests.
struct RestLayout {
  std::vector<int> shard_dim;  ///< One a mesh axis; -1 is replicated.
  std::vector<int>
      reduce_axes;  ///< Axes over which its gradient is a partial sum, to be reduced once a step.
};

/// What printing an operator must know beyond the graph.
struct CallInfo {
  std::string
      callee;  ///< Overrides the user's function: "nnscaler.runtime.functional.cross_entropy".
  std::vector<std::pair<std::string, std::string>> keywords;  ///< Appended: name and Python source.
  int divide_result = 1;         ///< The result is divided by this (a mean over parts).
  bool random = false;           ///< Draws random numbers …
  std::vector<int> random_axes;  ///< … independently along these axes, alike along the others.
  std::string note;  ///< A comment, such as what the operator is split along; may be empty.
};

/// What every rank of a plan executes; ranks differ in their mesh coordinates only.
///
/// `graph` has local shapes and local size arguments. Redistributions are operators of it with
/// target "nnscaler.redistribute" and an entry in `redistributions`.
struct Program {
  Mesh mesh;
  Graph graph;
  std::vector<CallInfo> calls;                    ///< One for each operator.
  std::map<int, Redistribution> redistributions;  ///< By operator index.
  std::map<int, RestLayout> rest;  ///< By value index: parameters, buffers, constants.
  std::string plan_digest;
  std::vector<std::string> header;  ///< Lines for the docstring of the generated file.
  int runtime_ngpus = 1;            ///< Files to write; a multiple of the mesh's devices.
};

}  // namespace nnscaler
