#pragma once

#include <string>
#include <vector>

#include "core/plan/plan.h"

namespace nnscaler {

/// Makes the model return every operator's first result, whole, as a flat list: for finding the
/// operator where two plans part. The model's own outputs are dropped.
///
/// Returns a description of each result's operator, in the order of the list.
std::vector<std::string> expose_results(Prepared& prepared, Plan& plan);

}  // namespace nnscaler
