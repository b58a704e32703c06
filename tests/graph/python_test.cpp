#include "core/graph/python.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/base/text.h"
#include "tests/golden.h"

namespace nnscaler {
namespace {

/// Applies `translate` to each line.
std::string by_line(const std::string& input,
                    const std::function<std::string(const std::string&)>& translate) {
  std::string text;
  for (const std::string& line : split(strip(input), '\n')) text += translate(line) + "\n";
  return text;
}

TEST(Python, Sizes) {
  run_golden("graph/python/sizes.txt", [](const std::string& input) {
    return by_line(input, [](const std::string& line) {
      const SizeExpression size = parse_srepr(line);
      std::string text = size.text;
      if (size.number) text += "  (a number)";
      if (!size.unknown.empty()) text += "  (unknown: " + size.unknown + ")";
      return text;
    });
  });
}

TEST(Python, Literals) {
  run_golden("graph/python/literals.txt", [](const std::string& input) {
    return by_line(input, [](const std::string& line) { return is_literal(line) ? "yes" : "no"; });
  });
}

TEST(Python, RefusesDeepNesting) {
  const auto nested = [](std::string_view open, std::string_view inner, std::string_view close,
                         int depth) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += open;
    text += inner;
    for (int i = 0; i < depth; ++i) text += close;
    return text;
  };
  EXPECT_TRUE(is_literal(nested("[", "1", "]", 90)));
  EXPECT_FALSE(is_literal(nested("[", "1", "]", 100000)));
  EXPECT_EQ(parse_srepr(nested("Identity(", "Integer(3)", ")", 90)).number, 3);
  EXPECT_THROW(parse_srepr(nested("Identity(", "Integer(3)", ")", 100000)), InputError);
}

TEST(Python, Names) {
  EXPECT_TRUE(is_identifier("_x1"));
  EXPECT_TRUE(is_identifier("größe"));
  EXPECT_FALSE(is_identifier("1x"));
  EXPECT_FALSE(is_identifier("lambda"));
  EXPECT_FALSE(is_identifier(""));
  EXPECT_TRUE(is_dotted_name("pkg.mod.Class"));
  EXPECT_FALSE(is_dotted_name("pkg..Class"));
  EXPECT_FALSE(is_dotted_name("pkg.Class()"));
}

TEST(Python, PrintsNumbersAndStrings) {
  EXPECT_EQ(print_float(2.0), "2.0");
  EXPECT_EQ(print_float(-3.0), "-3.0");
  EXPECT_EQ(print_float(1e-5), "1e-05");
  EXPECT_EQ(print_float(1e20), "1e+20");
  EXPECT_EQ(print_float(0.1), "0.1");
  EXPECT_EQ(print_float(-std::numeric_limits<double>::infinity()), "float(\"-inf\")");
  EXPECT_EQ(quote("a\"b\\c\n\x01"), "\"a\\\"b\\\\c\\n\\x01\"");
}

}  // namespace
}  // namespace nnscaler
