#include "core/emit/emit.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <numeric>

#include "core/base/text.h"
#include "core/emit/expression.h"
#include "core/emit/names.h"
#include "core/emit/python.h"
#include "tests/golden.h"

namespace nnscaler {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines = split(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

TEST(Python, WrapsAsRuffDoes) {
  run_golden("emit/wrap.txt", [](const std::string& input) {
    python::Writer writer;
    for (const std::string& line : lines_of(input)) {
      const size_t indent = line.find_first_not_of(' ');
      writer.statement(static_cast<int>(indent), line.substr(indent));
    }
    return writer.text();
  });
}

TEST(Python, NumbersReadBackTheSame) {
  EXPECT_EQ(python::number(1.0), "1.0");
  EXPECT_EQ(python::number(1e-05), "1e-05");
  EXPECT_EQ(python::number(0.0001), "0.0001");
  EXPECT_EQ(python::number(1e16), "1e16");
  EXPECT_EQ(python::number(123456789012345680.0), "1.2345678901234568e17");
  EXPECT_EQ(python::number(-1.7976931348623157e308), "-1.7976931348623157e308");
  EXPECT_EQ(python::number(-HUGE_VAL), "float(\"-inf\")");
  EXPECT_EQ(python::number(std::nan("")), "float(\"nan\")");
}

TEST(Python, QuotesAsRuffDoes) {
  EXPECT_EQ(python::quote("batch[\"x\"]"), "'batch[\"x\"]'");
  EXPECT_EQ(python::quote("it's"), "\"it's\"");
  EXPECT_EQ(python::quote("a\\b\n\x01"), "\"a\\\\b\\n\\x01\"");
}

TEST(Names, OfSourceLines) {
  run_golden("emit/names.txt", [](const std::string& input) {
    std::string output;
    for (const std::string& line : lines_of(input)) {
      std::vector<std::string> names = emission::assigned_names(line);
      for (std::string& name : names) name = name.empty() ? "-" : name;
      output += (names.empty() ? "nothing" : join(names, " ")) + "\n";
    }
    return output;
  });
}

TEST(Names, ThatPythonAccepts) {
  EXPECT_EQ(emission::safe_name("class"), "class_");
  EXPECT_EQ(emission::safe_name("sum"), "sum_");
  EXPECT_EQ(emission::safe_name("l"), "l_");
  EXPECT_EQ(emission::safe_name("3-d"), "x3_d");
  EXPECT_EQ(emission::singular("layers", "module"), "layer");
  EXPECT_EQ(emission::singular("bodies", "module"), "body");
  EXPECT_EQ(emission::singular("h", "block"), "block");
  EXPECT_EQ(emission::last_word("GPT2Block"), "block");
  EXPECT_EQ(emission::last_word("MLP"), "mlp");
}

/// A graph whose operators are written as text: "aten.add.Tensor self=x other=2 | alpha=3".
class OperatorText {
 public:
  OperatorText() { program_.graph.eval_mode = "flags"; }

  std::string spell(const std::string& line) {
    Operator op;
    const size_t space = line.find(' ');
    op.target = line.substr(0, space);
    if (const size_t slash = op.target.find('/'); slash != std::string::npos) {
      op.torch_fn = op.target.substr(slash + 1);
      op.target.resize(slash);
    }
    position_ = space;
    text_ = line;
    bool keyword = false;
    for (skip(); position_ < text_.size(); skip()) {
      if (text_[position_] == '|') {
        keyword = true;
        ++position_;
        continue;
      }
      const size_t equal = text_.find('=', position_);
      Argument argument;
      argument.name = text_.substr(position_, equal - position_);
      argument.keyword = keyword;
      position_ = equal + 1;
      argument.value = content();
      op.args.push_back(std::move(argument));
    }
    program_.graph.operators = {op};
    program_.calls.resize(1);
    emission::Scopes scopes;
    scopes.program = &program_;
    emission::Context context;
    context.operand = [&](int argument, int element) {
      const ArgValue& value = program_.graph.operators[0].args[static_cast<size_t>(argument)].value;
      const auto* one = std::get_if<ValueId>(&value);
      return program_.graph
          .value(one != nullptr ? *one : std::get<TensorList>(value)[static_cast<size_t>(element)])
          .name;
    };
    context.number = [](int, int, const std::string& literal) { return literal; };
    context.list = [](int) { return std::nullopt; };
    emission::Speller speller(program_);
    return speller.spell(scopes, 0, context).text;
  }

 private:
  void skip() {
    while (position_ < text_.size() && text_[position_] == ' ') ++position_;
  }

  std::string word() {
    const size_t start = position_;
    while (position_ < text_.size() &&
           std::string_view(" ,]").find(text_[position_]) == std::string::npos) {
      ++position_;
    }
    return text_.substr(start, position_ - start);
  }

  ValueId tensor(const std::string& name) {
    for (size_t i = 0; i < program_.graph.values.size(); ++i) {
      if (program_.graph.values[i].name == name) return {static_cast<int32_t>(i)};
    }
    Value value;
    value.name = name;
    value.shape = {{2, ""}, {3, ""}, {4, ""}};
    program_.graph.values.push_back(value);
    return {static_cast<int32_t>(program_.graph.values.size()) - 1};
  }

  ArgValue content() {
    if (text_[position_] != '[') return scalar(word());
    ++position_;
    TensorList tensors;
    std::vector<SymInt> integers;
    while (text_[position_] != ']') {
      const ArgValue each = scalar(word());
      if (const auto* integer = std::get_if<int64_t>(&each)) {
        integers.push_back({*integer, {}});
      } else {
        const auto* id = std::get_if<ValueId>(&each);
        tensors.push_back(id != nullptr ? *id : ValueId{});
      }
      while (text_[position_] == ',' || text_[position_] == ' ') ++position_;
    }
    ++position_;
    if (integers.empty()) return tensors;
    return integers;
  }

  ArgValue scalar(const std::string& text) {
    if (text == "None") return std::monostate{};
    if (text == "True" || text == "False") return text == "True";
    if (text == "float32") return DType::kFloat32;
    if (text == "-Infinity") return -HUGE_VAL;
    if (text[0] == '"') return text.substr(1, text.size() - 2);
    if (std::isdigit(static_cast<unsigned char>(text.back())) != 0 &&
        (text[0] == '-' || std::isdigit(static_cast<unsigned char>(text[0])) != 0)) {
      if (text.find_first_of(".e") != std::string::npos) return std::stod(text);
      return static_cast<int64_t>(std::stoll(text));
    }
    return tensor(text);
  }

  Program program_;
  std::string text_;
  size_t position_ = 0;
};

TEST(Operators, AsPythonHasThem) {
  run_golden("emit/operators.txt", [](const std::string& input) {
    std::string output;
    for (const std::string& line : lines_of(input)) output += OperatorText().spell(line) + "\n";
    return output;
  });
}

/// Two equal layers and a loss on a mesh, as lowering leaves them: split weights, redistributions,
/// random numbers, a runtime function, operators of training only, regions.
class HandMade {
 public:
  Program program;

  HandMade() {
    Graph& graph = program.graph;
    graph.module_class = "pkg.model.Net";
    graph.eval_mode = "flags";
    program.mesh.axes = {{"dp", 2}, {"tp", 2}};
    program.plan_digest = "5e1f0c";
    program.runtime_ngpus = 4;
    for (int i = 0; i < 2; ++i) {
      const std::string layer = "layers." + std::to_string(i);
      held_[layer + ".up"] = hold(layer + ".up.weight", {16, 8}, {-1, 0});
      held_[layer + ".down"] = hold(layer + ".down.weight", {8, 16}, {-1, 1});
    }
    held_["head"] = hold("head.weight", {5, 8}, {-1, -1});
    const ValueId steps = hold("steps", {}, {-1, -1}, ValueKind::kBuffer, DType::kInt64);
    ValueId x = input("x", {8, 8}, DType::kFloat32);
    const ValueId labels = input("labels", {8}, DType::kInt64);
    graph.forward = {{"x", "positional", std::nullopt, leaf(0)},
                     {"labels", "positional", "None", leaf(1)},
                     {"mode", "keyword", "'train'", std::nullopt}};

    op("aten.add_.Tensor", root(), "self.steps += 1",
       {{"self", false, steps, false}, {"other", false, int64_t{1}, false}}, {}, DType::kInt64);
    last().training_only = true;
    x = move(x, root(), {{StepKind::kSlice, 0, 0}}, {{StepKind::kAllGather, 0, 0}},
             "x is split along the batch over dp", 0, 256);
    for (int i = 0; i < 2; ++i) x = layer(x, i);
    graph.regions.push_back({});  // no_grad
    const ValueId size = op("aten.abs.default", root(), "norm = x.abs().mean()",
                            {{"self", false, x, false}}, {4, 8});
    last().region = 0;
    const ValueId norm = op("aten.mean.default", root(), "norm = x.abs().mean()",
                            {{"self", false, size, false}}, {});
    last().region = 0;
    program.calls.back().divide_result = 2;
    const ValueId logits =
        op("aten.linear.default", inside("head", "torch.nn.modules.linear.Linear"),
           "logits = self.head(x)",
           {{"input", false, x, false}, {"weight", false, held_["head"], false}}, {4, 5});
    const ValueId target = move(labels, root(), {{StepKind::kSlice, 0, 0}}, {},
                                "labels are split along the batch over dp", 0, 0);
    const ValueId loss =
        op("aten.cross_entropy_loss.default", root(), "loss = F.cross_entropy(logits, labels)",
           {{"self", false, logits, false}, {"target", false, target, false}}, {});
    program.calls.back().callee = "nnscaler.runtime.functional.cross_entropy";
    program.calls.back().keywords = {{"mesh", "MESH"}, {"batch", "('dp',)"}};
    program.calls.back().note = "each rank has its rows of the batch";
    const ValueId whole = move(loss, root(), {{StepKind::kAllReduce, 0}}, {},
                               "cross_entropy leaves partial results over dp", 4, 0);
    graph.outputs = {whole, norm};
    graph.output.kind = Tree::Kind::kDict;
    graph.output.keys = {"'loss'", "'norm'"};
    graph.output.children = {leaf(0), leaf(1)};
  }

 private:
  static Tree leaf(int index) {
    Tree tree;
    tree.leaf = index;
    return tree;
  }

  ValueId add(Value value) {
    program.graph.values.push_back(std::move(value));
    return {static_cast<int32_t>(program.graph.values.size()) - 1};
  }

  static std::vector<Extent> extents(const std::vector<int64_t>& shape) {
    std::vector<Extent> result;
    for (const int64_t extent : shape) result.push_back({extent, ""});
    return result;
  }

  ValueId hold(const std::string& fqn, const std::vector<int64_t>& shape, std::vector<int> split,
               ValueKind kind = ValueKind::kParameter, DType dtype = DType::kFloat32) {
    Value value;
    value.name = fqn;
    value.fqn = fqn;
    value.kind = kind;
    value.dtype = dtype;
    value.shape = extents(shape);
    value.device = "cpu";
    value.requires_grad = kind == ValueKind::kParameter;
    const ValueId id = add(value);
    program.rest[id.index] = {
        std::move(split), kind == ValueKind::kParameter ? std::vector<int>{0} : std::vector<int>{}};
    return id;
  }

  ValueId input(const std::string& name, const std::vector<int64_t>& shape, DType dtype) {
    Value value;
    value.name = name;
    value.kind = ValueKind::kInput;
    value.dtype = dtype;
    value.shape = extents(shape);
    value.device = "cpu";
    const ValueId id = add(value);
    program.graph.inputs.push_back(id);
    return id;
  }

  ModuleStack root() const { return {{"", 0, "pkg.model.Net"}}; }
  ModuleStack inside(const std::string& path, const std::string& class_name) const {
    ModuleStack stack = root();
    if (path.starts_with("layers.")) stack.push_back({path.substr(0, 8), 0, "pkg.model.Layer"});
    if (path.size() != 8 || !path.starts_with("layers.")) stack.push_back({path, 0, class_name});
    return stack;
  }

  Operator& last() { return program.graph.operators.back(); }

  ValueId op(const std::string& target, const ModuleStack& stack, const std::string& line,
             std::vector<Argument> args, const std::vector<int64_t>& shape,
             DType dtype = DType::kFloat32) {
    Graph& graph = program.graph;
    Operator made;
    made.target = target;
    made.args = std::move(args);
    made.stack = static_cast<int>(graph.stacks.size());
    graph.stacks.push_back(stack);
    if (!line.empty()) {
      made.trace = static_cast<int>(graph.traces.size());
      Trace trace;
      for (size_t i = 0; i < stack.size(); ++i) {
        if (stack[i].class_name.starts_with("torch.nn.")) continue;
        const bool innermost =
            i + 1 == stack.size() || stack[i + 1].class_name.starts_with("torch.nn.");
        const std::string text = innermost ? line : "x = layer(x)";
        const int number = 10 + std::accumulate(text.begin(), text.end(), 0) % 89;
        trace.push_back({"/home/user/model.py", number, "forward", text});
      }
      graph.traces.push_back(std::move(trace));
    }
    Value result;
    result.name = "v" + std::to_string(graph.values.size());
    result.dtype = dtype;
    result.shape = extents(shape);
    result.device = "cpu";
    result.producer = {static_cast<int32_t>(graph.operators.size())};
    made.outputs = {add(result)};
    graph.operators.push_back(std::move(made));
    program.calls.emplace_back();
    return graph.operators.back().outputs[0];
  }

  ValueId move(ValueId from, const ModuleStack& stack, Steps forward, Steps backward,
               const std::string& reason, int64_t bytes_forward, int64_t bytes_backward) {
    std::vector<int64_t> shape;
    for (const Extent& extent : program.graph.value(from).shape) shape.push_back(extent.value);
    const ValueId to = op("nnscaler.redistribute", stack, "", {{"input", false, from, false}},
                          shape, program.graph.value(from).dtype);
    program.redistributions[static_cast<int>(program.graph.operators.size()) - 1] = {
        std::move(forward), std::move(backward), {}, {}, reason, bytes_forward, bytes_backward};
    return to;
  }

  ValueId layer(ValueId x, int i) {
    const std::string path = "layers." + std::to_string(i);
    const ModuleStack here = inside(path, "");
    const ValueId whole = move(x, here, {}, {{StepKind::kAllReduce, 1}},
                               "up and gate give partial gradients over tp", 0, 128);
    const ValueId up = op(
        "aten.linear.default", inside(path + ".up", "torch.nn.modules.linear.Linear"),
        "h = F.gelu(self.up(x))",
        {{"input", false, whole, false}, {"weight", false, held_[path + ".up"], false}}, {4, 16});
    const ValueId h = op("aten.gelu.default", here, "h = F.gelu(self.up(x))",
                         {{"self", false, up, false}}, {4, 16});
    const ValueId kept =
        op("aten.dropout.default", here, "h = self.dropout(h)",
           {{"input", false, h, false}, {"p", false, 0.1, false}, {"train", false, true, false}},
           {4, 16});
    program.calls.back().random = true;
    program.calls.back().random_axes = {0, 1};
    const ValueId down = op(
        "aten.linear.default", inside(path + ".down", "torch.nn.modules.linear.Linear"),
        "return x + self.down(h)",
        {{"input", false, kept, false}, {"weight", false, held_[path + ".down"], false}}, {4, 8});
    const ValueId sum = move(down, here, {{StepKind::kAllReduce, 1}}, {},
                             "down leaves partial results over tp", 128, 0);
    return op("aten.add.Tensor", here, "return x + self.down(h)",
              {{"self", false, x, false}, {"other", false, sum, false}}, {4, 8});
  }

  std::map<std::string, ValueId> held_;
};

void expect_file(const std::string& path, const std::string& text) {
  const std::string file = std::string(NNSCALER_TESTS_DIR) + "/" + path;
  if (std::getenv("NNSCALER_GOLDEN") != nullptr) return write_file(file, text);
  EXPECT_EQ(read_file(file), text) << file;
}

TEST(Emit, WritesWhatLoweringLeaves) {
  const std::map<std::string, std::string> files = emit(HandMade().program);
  ASSERT_EQ(files.size(), 4U);
  expect_file("emit/hand_made/gencode0.py", files.at("gencode0.py"));
  expect_file("emit/hand_made/gencode1.py", files.at("gencode1.py"));
  EXPECT_EQ(emit(HandMade().program), files);
}

TEST(Emit, KeepsLayersApartThatDifferInTheirPlan) {
  HandMade made;
  const std::string same = emit(made.program).at("gencode0.py");
  EXPECT_EQ(same.find("class Layer1("), std::string::npos);
  made.program.rest.begin()->second.shard_dim = {-1, -1};
  const std::string other = emit(made.program).at("gencode0.py");
  EXPECT_NE(other.find("class Layer1("), std::string::npos);
  EXPECT_NE(other.find("nn.ModuleList([Layer(), Layer1()])"), std::string::npos);
}

}  // namespace
}  // namespace nnscaler
