#include "core/ops/annotation.h"

#include <gtest/gtest.h>

#include "core/base/text.h"
#include "tests/golden.h"

namespace nnscaler {
namespace {

std::string round_trip(const std::string& input) {
  // The last character is the newline of the file; all else is the annotation.
  const Annotation annotation = parse_annotation(input.substr(0, input.size() - 1));
  const std::string text = to_string(annotation);
  EXPECT_EQ(parse_annotation(text), annotation) << text;
  return text;
}

TEST(Annotation, Reads) { run_golden("ops/annotation/reads.txt", round_trip); }
TEST(Annotation, Refuses) { run_golden("ops/annotation/refuses.txt", round_trip); }

TEST(Annotation, Content) {
  const Annotation annotation = parse_annotation("(h d) k+, ?, n^ k+ 8: /k -> (h d) n^");
  ASSERT_EQ(annotation.inputs.size(), 3u);
  EXPECT_EQ(annotation.inputs[0].dims[0].size(), 2u);
  EXPECT_EQ(annotation.inputs[0].dims[1][0].mark, Mark::kSum);
  EXPECT_TRUE(annotation.inputs[1].opaque);
  EXPECT_EQ(annotation.inputs[2].dims[0][0].mark, Mark::kFrozen);
  EXPECT_EQ(annotation.inputs[2].dims[2][0].number, 8);
  EXPECT_EQ(annotation.inputs[2].no_gradient_sum, std::vector<std::string>{"k"});
  EXPECT_EQ(annotation.inputs[2].dims[1][0].column, 17);
}

}  // namespace
}  // namespace nnscaler
