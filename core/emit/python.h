#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nnscaler::python {

/// Whether `text` is a name that Python accepts (ASCII only).
bool is_identifier(std::string_view text);
/// Whether `text` is a keyword: not usable as a name at all.
bool is_keyword(std::string_view text);
/// Whether `text` is a built-in function or constant that a name should not shadow.
bool is_builtin(std::string_view text);

/// `text` as a string literal in the quotes that `ruff format` prefers.
std::string quote(std::string_view text);
/// Python's repr() of a float; `float("inf")` and the like for what has no literal.
std::string number(double value);
/// `text` as it may stand within a docstring.
std::string docstring_text(std::string_view text);
/// "(2, 3)", "(2,)", "()"
std::string tuple(const std::vector<std::string>& items);

/// Lines of a Python file, wrapped at 88 columns as `ruff format` wraps them.
class Writer {
 public:
  /// One logical line in its flat form ("x = f(a, b)", "def f(self, x):"), wrapped where it is too
  /// long. `comment` (without "# ") goes behind it, or above it where the line would get too long.
  void statement(int indent, std::string_view text, std::string_view comment = {});
  /// "# text", cut at 88 columns where `cut`, else folded at blanks.
  void comment(int indent, std::string_view text, bool cut = false);
  /// The line as it is: blank lines, docstrings.
  void line(int indent, std::string_view text);
  void blank(int count = 1);
  /// A docstring of one paragraph, folded.
  void docstring(int indent, std::string_view text);

  /// Whether a statement needs one line only.
  static bool fits(int indent, std::string_view text);

  const std::string& text() const { return text_; }
  void append(const Writer& other) { text_ += other.text_; }
  /// Whether code (not comments, nor docstrings) contains the word followed by a dot or bracket.
  bool uses(std::string_view word) const;

 private:
  void logical(int indent, std::string_view text, std::string_view suffix);
  void bracketed(int indent, std::string_view head, std::string_view body, std::string_view tail,
                 bool atom);
  void expression(int indent, std::string_view text, std::string_view suffix);
  std::string text_;
};

}  // namespace nnscaler::python
