#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <string>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/graph/graph.h"

namespace nnscaler {

/// Graphs written by hand, a line a value:
///
///     x: f32[4, s0=8] input grad             # kinds: input, param, buffer, constant
///     y: f32[4, 8] = aten.add.Tensor(self=x, other=1.5)
///     a: f32[2], b: f32[2] = aten.split.Tensor(self=x, split_size=2)
///     leaf pkg.fn "a b -> a b"                # a Python function, called as pkg.fn(x=x, n='4')
///     return y
///
/// A result needs a gradient where an operand does and its type can. 'text' is what a leaf's caller
/// wrote.
class GraphText {
 public:
  explicit GraphText(const std::string& text) {
    for (const std::string& line : split(text, '\n')) {
      if (const std::string content = strip(line); !content.empty()) read_line(content);
    }
  }
  Graph graph;

 private:
  [[noreturn]] static void fail(const std::string& what) {
    throw std::runtime_error("graph text: " + what);
  }

  void read_line(const std::string& line) {
    text_ = line, at_ = 0;
    if (take("leaf ")) {
      LeafFunction leaf;
      leaf.signature = leaf.target = word();
      skip();
      if (peek() == '"') leaf.annotation = quoted('"');
      graph.leaves.push_back(leaf);
      return;
    }
    if (take("return ")) {
      do graph.outputs.push_back(value(word()));
      while (take(","));
      return;
    }
    std::vector<ValueId> made;
    do made.push_back(read_value());
    while (take(","));
    if (!take("=")) return read_kind(made);
    Operator op;
    op.target = word();
    if (take("{")) {
      op.torch_fn = word();
      expect("}");
    }
    expect("(");
    bool gradient = false;
    while (!take(")")) {
      Argument argument;
      argument.name = word();
      expect("=");
      argument.value = read_argument();
      op.args.push_back(std::move(argument));
      take(",");
    }
    for (const ValueId id : op.tensor_inputs())
      gradient = gradient || graph.value(id).requires_grad;
    op.outputs = made;
    const OpId id{static_cast<int32_t>(graph.operators.size())};
    for (size_t i = 0; i < made.size(); ++i) {
      Value& value = graph.value(made[i]);
      value.producer = id;
      value.output_index = static_cast<int>(i);
      value.requires_grad = gradient && is_differentiable(value.dtype);
    }
    graph.operators.push_back(std::move(op));
  }

  ValueId read_value() {
    Value value;
    value.name = word();
    expect(":");
    const std::string type = word();
    for (int dtype = 1; dtype < 36; ++dtype) {
      if (type == dtype_short_name(static_cast<DType>(dtype)))
        value.dtype = static_cast<DType>(dtype);
    }
    value.is_symbol = type == "sym";
    if (value.dtype == DType::kUnknown && !value.is_symbol) fail("no type " + type);
    expect("[");
    while (!take("]")) {
      Extent extent;
      std::string text = word();
      if (take("=")) extent.symbol = text, text = word();
      extent.value = std::stoll(text);
      value.shape.push_back(extent);
      take(",");
    }
    int64_t stride = 1;
    for (size_t d = value.shape.size(); d-- > 0;) {
      value.strides.insert(value.strides.begin(), Extent{stride, ""});
      stride *= value.shape[d].value;
    }
    const ValueId id{static_cast<int32_t>(graph.values.size())};
    names_[value.name] = id;
    graph.values.push_back(std::move(value));
    return id;
  }

  void read_kind(const std::vector<ValueId>& made) {
    const std::map<std::string, ValueKind> kinds = {{"input", ValueKind::kInput},
                                                    {"param", ValueKind::kParameter},
                                                    {"buffer", ValueKind::kBuffer},
                                                    {"constant", ValueKind::kConstant}};
    for (skip(); at_ < text_.size(); skip()) {
      const std::string text = word();
      for (const ValueId id : made) {
        Value& value = graph.value(id);
        if (kinds.contains(text)) value.kind = kinds.at(text);
        if (text == "param" || text == "grad") value.requires_grad = true;
      }
      if (text == "input") graph.inputs.insert(graph.inputs.end(), made.begin(), made.end());
    }
  }

  ArgValue read_argument() {
    skip();
    if (peek() == '"') return quoted('"');
    if (peek() == '\'') return PySource{quoted('\'')};
    if (take("[")) {
      std::vector<SymInt> sizes;
      TensorList tensors;
      while (!take("]")) {
        const std::string text = word();
        if (names_.contains(text)) {
          tensors.push_back(value(text));
        } else if (text == "None") {
          tensors.push_back(ValueId());
        } else {
          sizes.push_back({std::stoll(text), ValueId()});
        }
        take(",");
      }
      if (!tensors.empty()) return tensors;
      return sizes;
    }
    const std::string text = word();
    if (text == "None") return std::monostate();
    if (text == "True" || text == "False") return text == "True";
    if (names_.contains(text)) {
      const ValueId id = value(text);
      if (graph.value(id).is_symbol) return SymInt{graph.value(id).num_elements(), id};
      return id;
    }
    for (int dtype = 1; dtype < 36; ++dtype) {
      if (text == dtype_short_name(static_cast<DType>(dtype))) return static_cast<DType>(dtype);
    }
    if (text.find_first_of(".e") != std::string::npos) return std::stod(text);
    return static_cast<int64_t>(std::stoll(text));
  }

  ValueId value(const std::string& name) const {
    const auto found = names_.find(name);
    if (found == names_.end()) fail("no value " + name);
    return found->second;
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip() {
    while (peek() == ' ') ++at_;
  }
  bool take(const std::string& wanted) {
    skip();
    if (text_.compare(at_, wanted.size(), wanted) != 0) return false;
    at_ += wanted.size();
    return true;
  }
  void expect(const std::string& wanted) {
    if (!take(wanted)) fail("expected " + wanted + " at \"" + text_.substr(at_) + "\"");
  }
  std::string quoted(char quote) {
    const size_t end = text_.find(quote, at_ + 1);
    std::string inside = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return inside;
  }
  std::string word() {
    skip();
    const size_t begin = at_;
    while (std::isalnum(static_cast<unsigned char>(peek())) ||
           (peek() && std::string("._-*").find(peek()) != std::string::npos))
      ++at_;
    if (at_ == begin) fail("expected a name at \"" + text_.substr(at_) + "\"");
    return text_.substr(begin, at_ - begin);
  }

  std::string text_;
  size_t at_ = 0;
  std::map<std::string, ValueId> names_;
};

}  // namespace nnscaler
