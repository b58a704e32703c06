#include "core/graph/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace nnscaler {

namespace {

struct DTypeFacts {
  DType dtype;
  int64_t bytes;
  const char* name;
  const char* short_name;
  bool differentiable;
};

constexpr std::array kDTypes = {
    DTypeFacts{DType::kUInt8, 1, "uint8", "u8", false},
    DTypeFacts{DType::kInt8, 1, "int8", "i8", false},
    DTypeFacts{DType::kInt16, 2, "int16", "i16", false},
    DTypeFacts{DType::kInt32, 4, "int32", "i32", false},
    DTypeFacts{DType::kInt64, 8, "int64", "i64", false},
    DTypeFacts{DType::kFloat16, 2, "float16", "f16", true},
    DTypeFacts{DType::kFloat32, 4, "float32", "f32", true},
    DTypeFacts{DType::kFloat64, 8, "float64", "f64", true},
    DTypeFacts{DType::kComplex32, 4, "complex32", "c32", true},
    DTypeFacts{DType::kComplex64, 8, "complex64", "c64", true},
    DTypeFacts{DType::kComplex128, 16, "complex128", "c128", true},
    DTypeFacts{DType::kBool, 1, "bool", "b8", false},
    DTypeFacts{DType::kBFloat16, 2, "bfloat16", "bf16", true},
    DTypeFacts{DType::kUInt16, 2, "uint16", "u16", false},
    DTypeFacts{DType::kFloat8E4M3FN, 1, "float8_e4m3fn", "f8e4m3fn", true},
    DTypeFacts{DType::kFloat8E5M2, 1, "float8_e5m2", "f8e5m2", true},
    DTypeFacts{DType::kFloat8E4M3FNUZ, 1, "float8_e4m3fnuz", "f8e4m3fnuz", true},
    DTypeFacts{DType::kFloat8E5M2FNUZ, 1, "float8_e5m2fnuz", "f8e5m2fnuz", true},
    DTypeFacts{DType::kFloat8E8M0FNU, 1, "float8_e8m0fnu", "f8e8m0fnu", true},
    DTypeFacts{DType::kUInt32, 4, "uint32", "u32", false},
    DTypeFacts{DType::kUInt64, 8, "uint64", "u64", false},
};

const DTypeFacts& facts(DType dtype) {
  static constexpr DTypeFacts kUnknown{DType::kUnknown, 0, "unknown", "unknown", false};
  const auto found =
      std::ranges::find_if(kDTypes, [&](const DTypeFacts& f) { return f.dtype == dtype; });
  return found == kDTypes.end() ? kUnknown : *found;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Whether a file belongs to torch's or nnscaler's own package.
bool is_framework_file(std::string_view file) {
  if (file.starts_with('<')) return true;  // "<eval_with_key>.5", code that torch made.
  static constexpr std::array<std::string_view, 3> kPackages = {
      "-packages/torch/", "-packages/nnscaler/", "python/nnscaler/"};
  // PyTorch built from source, or a path that torch itself made relative.
  static constexpr std::array<std::string_view, 6> kParts = {
      "torch/nn/", "torch/utils/",        "torch/fx/",
      "torch/_",   "torch/functional.py", "torch/autograd/"};
  const auto in_package = [&](std::string_view package) { return contains(file, package); };
  const auto in_torch = [&](std::string_view part) {
    return file.starts_with(part) || contains(file, fmt::format("/{}", part));
  };
  return std::ranges::any_of(kPackages, in_package) || std::ranges::any_of(kParts, in_torch);
}

}  // namespace

int64_t dtype_bytes(DType dtype) { return facts(dtype).bytes; }
const char* dtype_name(DType dtype) { return facts(dtype).name; }
const char* dtype_short_name(DType dtype) { return facts(dtype).short_name; }
bool is_differentiable(DType dtype) { return facts(dtype).differentiable; }

int64_t Value::num_elements() const {
  int64_t count = 1;
  for (const Extent& extent : shape) count *= extent.value < 0 ? 1 : extent.value;
  return count;
}

int64_t Value::bytes() const { return num_elements() * dtype_bytes(dtype); }

std::string Value::type() const {
  if (is_symbol) return fmt::format("sym({})", symbol);
  std::string text = fmt::format("{}[", dtype_short_name(dtype));
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += shape[i].is_symbolic() ? shape[i].symbol : std::to_string(shape[i].value);
  }
  return text + "]";
}

std::string Frame::short_class() const {
  return class_name.substr(class_name.rfind('.', class_name.find('[')) + 1);
}

const Argument* Operator::find(std::string_view name) const {
  const auto found = std::ranges::find(args, name, &Argument::name);
  return found == args.end() ? nullptr : &*found;
}

std::vector<ValueId> Operator::tensor_inputs() const {
  std::vector<ValueId> inputs;
  for (const Argument& argument : args) {
    if (const auto* id = std::get_if<ValueId>(&argument.value)) {
      inputs.push_back(*id);
    } else if (const auto* list = std::get_if<TensorList>(&argument.value)) {
      std::ranges::copy_if(*list, std::back_inserter(inputs), &ValueId::valid);
    }
  }
  return inputs;
}

std::vector<ValueId> Operator::reads() const {
  std::vector<ValueId> values;
  for (const Argument& argument : args) {
    if (const auto* id = std::get_if<ValueId>(&argument.value)) {
      values.push_back(*id);
    } else if (const auto* tensors = std::get_if<TensorList>(&argument.value)) {
      std::ranges::copy_if(*tensors, std::back_inserter(values), &ValueId::valid);
    } else if (const auto* size = std::get_if<SymInt>(&argument.value)) {
      if (size->symbol.valid()) values.push_back(size->symbol);
    } else if (const auto* sizes = std::get_if<std::vector<SymInt>>(&argument.value)) {
      for (const SymInt& each : *sizes) {
        if (each.symbol.valid()) values.push_back(each.symbol);
      }
    }
  }
  return values;
}

const ModuleStack& Graph::stack_of(const Operator& op) const {
  static const ModuleStack kNone;
  return op.stack < 0 ? kNone : stacks[static_cast<size_t>(op.stack)];
}

const std::string& Graph::module_path(const Operator& op) const {
  static const std::string kRoot;
  const ModuleStack& stack = stack_of(op);
  return stack.empty() ? kRoot : stack.back().path;
}

const SourceLine* Graph::source_of(const Operator& op) const {
  if (op.trace < 0) return nullptr;
  const Trace& trace = traces[static_cast<size_t>(op.trace)];
  for (auto line = trace.rbegin(); line != trace.rend(); ++line) {
    if (!is_framework_file(line->file)) return &*line;
  }
  return trace.empty() ? nullptr : &trace.back();
}

bool Graph::in_recompute_region(const Operator& op) const {
  for (int region = op.region; region >= 0; region = regions[static_cast<size_t>(region)].parent) {
    if (regions[static_cast<size_t>(region)].kind == RegionKind::kRecompute) return true;
  }
  return false;
}

const LeafFunction* Graph::leaf(const std::string& target) const {
  const auto found = std::ranges::find(leaves, target, &LeafFunction::target);
  return found == leaves.end() ? nullptr : &*found;
}

std::vector<std::vector<OpId>> Graph::readers() const {
  std::vector<std::vector<OpId>> readers(values.size());
  for (size_t i = 0; i < operators.size(); ++i) {
    const OpId id{static_cast<int32_t>(i)};
    for (const ValueId value : operators[i].reads()) {
      std::vector<OpId>& list = readers[static_cast<size_t>(value.index)];
      if (list.empty() || list.back() != id) list.push_back(id);
    }
  }
  return readers;
}

}  // namespace nnscaler
