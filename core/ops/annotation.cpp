#include "core/ops/annotation.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/text.h"

namespace nnscaler {

namespace {

// Recursive descent without recursion: brackets do not nest.
//   annotation := shapes '->' shapes          shape := '?' | '/' | dim+, then ':' nogr*
//   dim        := token | '(' token+ ')'      token := (name | number | '*') ('+' | '^')?
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Annotation parse() {
    Annotation annotation;
    annotation.inputs = shapes(false);
    if (!take("->")) fail("expected \"->\" or another dimension");
    annotation.outputs = shapes(true);
    check_names(annotation);
    return annotation;
  }

 private:
  [[noreturn]] void fail_at(int column, const std::string& what) const {
    throw InputError("annotation \"" + std::string(text_) + "\", column " + std::to_string(column) +
                     ": " + what);
  }
  [[noreturn]] void fail(const std::string& what) const { fail_at(column(), what); }

  int column() const { return static_cast<int>(at_) + 1; }
  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  void skip_blanks() {
    while (!at_end() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos)
      ++at_;
  }
  bool take(std::string_view wanted) {
    skip_blanks();
    if (!text_.substr(at_).starts_with(wanted)) return false;
    at_ += wanted.size();
    return true;
  }
  static bool starts_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  }
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  std::string name() {
    const size_t begin = at_;
    while (!at_end() && (starts_name(peek()) || is_digit(peek()))) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::vector<ShapeExpr> shapes(bool last) {
    std::vector<ShapeExpr> list;
    skip_blanks();
    if (last ? at_end() : text_.substr(at_).starts_with("->")) return list;
    do list.push_back(shape());
    while (take(","));
    skip_blanks();
    if (last && !at_end()) {
      fail(text_.substr(at_).starts_with("->") ? "a second \"->\""
                                               : "expected a comma, a dimension or the end");
    }
    return list;
  }

  ShapeExpr shape() {
    ShapeExpr shape;
    if (take("/")) {
      shape.opaque = shape.no_gradient_sum_any = true;
      return shape;
    }
    if (take("?")) {
      shape.opaque = true;
    } else {
      for (skip_blanks(); starts_dim(); skip_blanks()) shape.dims.push_back(dim());
      if (peek() == '?') fail("? is for a whole tensor, not for one dimension");
      if (shape.dims.empty())
        fail("expected a name, a number, *, ? or a group such as (h d)" + mark_hint());
    }
    if (take(":")) {
      skip_blanks();
      if (peek() != '/') fail("expected / or / and a name after the colon");
      while (take("/")) {
        if (starts_name(peek())) {
          columns_.push_back(column());
          shape.no_gradient_sum.push_back(name());
        } else {
          shape.no_gradient_sum_any = true;
        }
      }
    }
    return shape;
  }

  std::string mark_hint() const {
    return peek() == '+' || peek() == '^' ? "; a mark follows its name directly" : "";
  }

  bool starts_dim() const {
    return starts_name(peek()) || is_digit(peek()) || peek() == '*' || peek() == '(';
  }

  DimExpr dim() {
    const int opened = column();
    if (!take("(")) return {token()};
    DimExpr group;
    for (skip_blanks(); peek() != ')'; skip_blanks()) {
      if (at_end() || peek() == ',' || peek() == '-') fail_at(opened, "this bracket is not closed");
      if (peek() == '(') fail("brackets do not nest");
      if (peek() == '*') fail("* stands for whole dimensions, so not in brackets");
      if (!starts_dim()) fail("expected a name, a number or )" + mark_hint());
      group.push_back(token());
    }
    ++at_;
    if (group.empty()) fail_at(opened, "these brackets are empty");
    if (peek() == '+' || peek() == '^') fail("marks follow the names in the brackets");
    return group;
  }

  DimToken token() {
    DimToken token;
    token.column = column();
    if (take("*")) {
      token.name = "*";
    } else if (starts_name(peek())) {
      token.name = name();
    } else {
      constexpr int64_t kMax = int64_t{1} << 53;
      while (is_digit(peek())) {
        token.number = token.number * 10 + (text_[at_++] - '0');
        if (token.number > kMax) fail_at(token.column, "this number is too large");
      }
      if (starts_name(peek())) fail_at(token.column, "a name does not begin with a digit");
    }
    if (peek() == '+' || peek() == '^') {
      if (token.name.empty() && peek() == '+') fail("a number is never split, so it takes no +");
      if (!token.name.empty()) token.mark = peek() == '+' ? Mark::kSum : Mark::kFrozen;
      ++at_;
      if (peek() == '+' || peek() == '^') fail("a second mark");
    }
    return token;
  }

  template <typename Visit>
  static void each_token(const std::vector<ShapeExpr>& shapes, Visit&& visit) {
    for (const ShapeExpr& shape : shapes) {
      for (const DimExpr& dim : shape.dims) {
        for (const DimToken& token : dim) {
          if (!token.name.empty()) visit(token);
        }
      }
    }
  }

  static bool has_name(const ShapeExpr& shape, const std::string& name) {
    bool found = false;
    each_token({shape}, [&](const DimToken& token) { found |= token.name == name; });
    return found;
  }

  void check_names(const Annotation& annotation) const {
    std::vector<DimToken> seen;
    const auto visit = [&](const DimToken& token) {
      const auto known = std::ranges::find(seen, token.name, &DimToken::name);
      if (known == seen.end()) {
        seen.push_back(token);
      } else if (known->mark != token.mark) {
        fail_at(token.column, token.name + " is marked otherwise in column " +
                                  std::to_string(known->column) + "; write one mark everywhere");
      }
    };
    each_token(annotation.inputs, visit);
    const std::vector<DimToken> in_inputs = seen;
    each_token(annotation.outputs, visit);
    each_token(annotation.outputs, [&](const DimToken& token) {
      if (token.name == "*" &&
          std::ranges::find(in_inputs, "*", &DimToken::name) == in_inputs.end())
        fail_at(token.column, "* stands in no input, so its length is unknown");
    });
    for (const std::vector<ShapeExpr>* shapes : {&annotation.inputs, &annotation.outputs}) {
      for (const ShapeExpr& shape : *shapes) {
        int stars = 0;
        each_token({shape}, [&](const DimToken& token) {
          if (token.name == "*" && ++stars > 1)
            fail_at(token.column, "a second * in one tensor, so its length is unknown");
        });
      }
    }
    for (const DimToken& token : in_inputs) {
      if (token.mark != Mark::kNone) continue;
      for (size_t i = 0; i < annotation.outputs.size(); ++i) {
        if (has_name(annotation.outputs[i], token.name)) continue;
        fail_at(token.column, "output " + std::to_string(i) + " lacks " + token.name + "; write " +
                                  token.name + "+ if splitting it leaves a partial sum there, or " +
                                  token.name + "^ if it may not be split");
      }
    }
    size_t column = 0;
    for (const std::vector<ShapeExpr>* shapes : {&annotation.inputs, &annotation.outputs}) {
      for (const ShapeExpr& shape : *shapes) {
        for (const std::string& name : shape.no_gradient_sum) {
          const int where = columns_[column++];
          if (std::ranges::find(seen, name, &DimToken::name) == seen.end())
            fail_at(where, "no dimension is called " + name);
        }
      }
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  std::vector<int> columns_;  // of the names after colons, in order
};

std::string to_string(const DimToken& token) {
  std::string text = token.name.empty() ? std::to_string(token.number) : token.name;
  if (token.mark != Mark::kNone) text += token.mark == Mark::kSum ? '+' : '^';
  return text;
}

std::string to_string(const ShapeExpr& shape) {
  if (shape.opaque && shape.no_gradient_sum_any && shape.no_gradient_sum.empty()) return "/";
  std::string text;
  if (shape.opaque) text = "?";
  for (const DimExpr& dim : shape.dims) {
    if (!text.empty()) text += ' ';
    std::vector<std::string> tokens;
    for (const DimToken& token : dim) tokens.push_back(to_string(token));
    text += dim.size() == 1 ? tokens[0] : "(" + join(tokens, " ") + ")";
  }
  if (shape.no_gradient_sum_any || !shape.no_gradient_sum.empty()) text += ":";
  if (shape.no_gradient_sum_any) text += " /";
  for (const std::string& name : shape.no_gradient_sum) text += " /" + name;
  return text;
}

std::string to_string(const std::vector<ShapeExpr>& shapes) {
  std::vector<std::string> parts;
  for (const ShapeExpr& shape : shapes) parts.push_back(to_string(shape));
  return join(parts, ", ");
}

}  // namespace

Annotation parse_annotation(std::string_view text) { return Parser(text).parse(); }

std::string to_string(const Annotation& annotation) {
  std::string text = to_string(annotation.inputs);
  if (!text.empty()) text += ' ';
  text += "->";
  if (!annotation.outputs.empty()) text += ' ' + to_string(annotation.outputs);
  return text;
}

}  // namespace nnscaler
