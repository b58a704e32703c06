#pragma once

#include "core/lower/program.h"
#include "core/plan/plan.h"

namespace nnscaler {

/// Applies a plan to its graph: local shapes and size arguments, redistributions as operators, rest
/// layouts of parameters with the axes over which their gradients add up. Passes, in order: place
/// redistributions, make sizes local, describe calls, lay out what rests.
///
/// Checks that every operand arrives in the layout that its operator's partition needs; a plan in
/// which one does not raises InputError naming operator and value.
Program lower(const Prepared& prepared, const Plan& plan);

}  // namespace nnscaler
