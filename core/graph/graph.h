#pragma once

#include <compare>
#include <complex>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

namespace nnscaler {

/// Position of an operator in Graph::operators; -1 is none.
struct OpId {
  int32_t index = -1;
  bool valid() const { return index >= 0; }
  auto operator<=>(const OpId&) const = default;
};

/// Position of a value in Graph::values; -1 is none.
struct ValueId {
  int32_t index = -1;
  bool valid() const { return index >= 0; }
  auto operator<=>(const ValueId&) const = default;
};

/// Element types, with the numbers that a torch.export archive writes.
enum class DType : uint8_t {
  kUnknown = 0,
  kUInt8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kComplex32 = 9,
  kComplex64 = 10,
  kComplex128 = 11,
  kBool = 12,
  kBFloat16 = 13,
  kUInt16 = 28,
  kFloat8E4M3FN = 29,
  kFloat8E5M2 = 30,
  kFloat8E4M3FNUZ = 31,
  kFloat8E5M2FNUZ = 32,
  kFloat8E8M0FNU = 33,
  kUInt32 = 34,
  kUInt64 = 35,
};

/// Bytes of one element.
int64_t dtype_bytes(DType dtype);
/// "float32", as in `torch.float32`.
const char* dtype_name(DType dtype);
/// "f32", as in listings.
const char* dtype_short_name(DType dtype);
/// Whether autograd can differentiate values of this type (floating or complex).
bool is_differentiable(DType dtype);

/// Length of one dimension: a number, or an expression over symbolic sizes.
struct Extent {
  int64_t value = 0;   ///< The length; for a symbolic one the hint (the sample's length), or -1 if
                       ///< it depends on data.
  std::string symbol;  ///< "" for a number, else a Python expression over the graph's symbols, such
                       ///< as "2*s27".
  bool is_symbolic() const { return !symbol.empty(); }
  bool operator==(const Extent&) const = default;
};

enum class ValueKind : uint8_t {
  kParameter,     ///< of the user's module; `fqn`
  kBuffer,        ///< of the user's module; `fqn`, `persistent`
  kConstant,      ///< a tensor literal that export lifted; `fqn` is its name in the archive
  kInput,         ///< a tensor (or symbolic size) that the caller passes
  kIntermediate,  ///< written by an operator
};

/// A tensor or a symbolic size that operators read and write.
struct Value {
  std::string name;  ///< Unique in the graph, as in the archive.
  ValueKind kind = ValueKind::kIntermediate;
  bool is_symbol = false;  ///< A symbolic int, float or bool, not a tensor.
  DType dtype = DType::kUnknown;
  std::vector<Extent> shape;
  std::vector<Extent> strides;  ///< In elements, as the whole graph has them.
  std::string device;           ///< "cpu", "cuda:0", "meta"
  bool requires_grad = false;   ///< A gradient flows into it in the whole model.
  std::string fqn;              ///< Parameters, buffers, constants: the name in the user's module.
  bool persistent = true;       ///< Buffers: in the state dict.
  std::string symbol;           ///< Symbolic sizes: the expression that it stands for ("s27").
  OpId producer;                ///< Invalid for what no operator writes.
  int output_index = 0;

  /// Product of the extents' values, those that depend on data counting as 1.
  int64_t num_elements() const;
  int64_t bytes() const;     ///< num_elements() * dtype_bytes(dtype).
  std::string type() const;  ///< "f32[4, 2*s27]"; "sym(2*s27)" for a symbolic size.
};

/// An integer argument that is a number or a symbolic size.
struct SymInt {
  int64_t value = 0;
  ValueId symbol;  ///< Valid when a symbolic size is meant.
  bool operator==(const SymInt&) const = default;
};

struct DeviceArg {
  std::string type;
  std::optional<int64_t> index;
  bool operator==(const DeviceArg&) const = default;
};
enum class LayoutArg : uint8_t { kStrided = 7, kSparse = 1 };
enum class MemoryFormatArg : uint8_t {
  kContiguous = 1,
  kChannelsLast = 2,
  kChannelsLast3d = 3,
  kPreserve = 4
};

/// What the caller of a leaf function wrote where it is no tensor: Python source of a literal.
struct PySource {
  std::string text;
  bool operator==(const PySource&) const = default;
};

using TensorList = std::vector<ValueId>;  ///< An invalid id is None.

/// One argument's content. `std::monostate` is None; a tensor is a ValueId; SymInt is a symbolic
/// int, float or bool only (plain integers are int64_t); a list of integers is always
/// std::vector<SymInt>.
using ArgValue = std::variant<std::monostate, ValueId, TensorList, int64_t, double, bool,
                              std::string, std::complex<double>, SymInt, std::vector<SymInt>,
                              std::vector<double>, std::vector<bool>, std::vector<std::string>,
                              DType, DeviceArg, LayoutArg, MemoryFormatArg, PySource>;

struct Argument {
  std::string name;  ///< As in the ATen schema, or the Python parameter of a leaf function.
  bool keyword = false;
  ArgValue value;
  bool is_tuple = false;  ///< Leaf functions: the TensorList was written as a tuple.
};

/// One level of the chain of modules that an operator was called in.
struct Frame {
  std::string path;        ///< Qualified name, "" for the root: "layers.3.attention".
  int call = 0;            ///< 0 for the module's first call, 1 for the second.
  std::string class_name;  ///< Full class name, "torch.nn.modules.linear.Linear".
  bool operator==(const Frame&) const = default;
  std::string short_class() const;  ///< "Linear"
};
using ModuleStack = std::vector<Frame>;  ///< Root first.

struct SourceLine {
  std::string file;
  int line = 0;
  std::string function;
  std::string text;
};
using Trace = std::vector<SourceLine>;  ///< Outermost first.

enum class RegionKind : uint8_t { kGradMode, kAutocast, kRecompute };

/// A stretch of operators under a context: `no_grad`, autocast, or recomputation in backward.
struct Region {
  RegionKind kind = RegionKind::kGradMode;
  int parent = -1;                 ///< Enclosing region in Graph::regions.
  bool enabled = false;            ///< kGradMode, kAutocast.
  std::string device_type;         ///< kAutocast
  DType dtype = DType::kUnknown;   ///< kAutocast
  bool cache_enabled = true;       ///< kAutocast
  bool preserve_rng_state = true;  ///< kRecompute
  std::string
      origin;  ///< kRecompute: what asked for it, "torch.utils.checkpoint" or "recompute_modules".
};

/// A node of the exported graph.
struct Operator {
  std::string target;  ///< "aten.linear.default", "_operator.mul", or a leaf:
                       ///< "nnscaler_leaf.pkg__fn.default".
  std::vector<Argument> args;
  std::vector<ValueId> outputs;  ///< Invalid for an output that is None.
  bool output_is_list = false;   ///< One Tensor[] rather than a tuple of tensors.
  int stack = -1;                ///< In Graph::stacks.
  int trace = -1;                ///< In Graph::traces.
  int region = -1;               ///< Innermost region, in Graph::regions.
  std::string torch_fn;          ///< "builtin_function_or_method.linear"
  int torch_fn_call = -1;        ///< Equal for nodes that one Python call made.
  bool training_only = false;    ///< Runs only while the module is in training mode.
  std::string annotation;        ///< Leaf functions: this call's annotation, "" when there is none.

  /// The argument of that name, or nullptr when it was left at its default.
  const Argument* find(std::string_view name) const;
  /// Every tensor read, in order of arguments, lists spread out; None entries of a list are left
  /// out.
  std::vector<ValueId> tensor_inputs() const;
  /// Everything read: tensor_inputs() and the symbolic sizes, in order of arguments.
  std::vector<ValueId> reads() const;
};

/// Structure of what forward takes or returns.
struct Tree {
  enum class Kind : uint8_t { kLeaf, kLiteral, kTuple, kList, kDict, kObject };
  Kind kind = Kind::kLeaf;
  int leaf = -1;        ///< kLeaf: index into Graph::inputs or Graph::outputs.
  std::string literal;  ///< kLiteral: Python source, such as "None" or "True".
  std::string type;     ///< kObject: import path of the class; also of a dict or tuple subclass.
  std::vector<std::string> keys;  ///< kDict: Python source of each key; kObject: field names.
  std::vector<Tree> children;
};

/// One parameter of the user's forward.
struct ForwardParameter {
  std::string name;
  std::string kind;  ///< "positional", "keyword", "var_positional" or "var_keyword".
  std::optional<std::string> fallback;  ///< Python source of the default, where there is one.
  std::optional<Tree> tree;  ///< What the sample passed; none when it was left at its default.
};

/// A Python function or autograd Function kept whole.
struct LeafFunction {
  std::string target;     ///< As in Operator::target.
  std::string signature;  ///< "pkg.ops.fn", "pkg.ops.Fn.apply"
  std::string module;     ///< To import.
  std::string qualname;   ///< Within the module: "fn", "Fn.apply".
  bool autograd_function = false;
  std::string annotation;  ///< "" when none was registered; a call may have its own.
};

/// What is known of a symbol in the extents.
struct SymbolInfo {
  int64_t min = 0;
  std::optional<int64_t> max;  ///< None: unbounded.
  std::string input;           ///< Name of the graph's input that it is a size of, "" for none …
  int dim = -1;                ///< … and which.
  bool operator==(const SymbolInfo&) const = default;
};

/// A call of `nnscaler.anchor`, which policies look for.
struct Anchor {
  std::string name;
  int position = 0;  ///< How many operators come before it.
  bool operator==(const Anchor&) const = default;
};

/// The model as exported.
struct Graph {
  std::vector<Value> values;
  std::vector<Operator> operators;
  std::vector<ModuleStack> stacks;
  std::vector<Trace> traces;
  std::vector<Region> regions;

  /// What the caller passes, flat, in order; invalid where the sample passed a constant (an int, a
  /// string, None), which is baked in.
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;  ///< Flat; invalid where a leaf is a literal.
  std::vector<ForwardParameter> forward;
  Tree output;
  std::string module_class;  ///< Full class name of the root module.

  std::vector<std::vector<std::string>>
      ties;  ///< Names of parameters (or buffers) that are one tensor.
  std::vector<LeafFunction> leaves;
  std::vector<Anchor> anchors;
  std::map<std::string, SymbolInfo> symbols;

  /// Raw little-endian contents of small constants, by fqn; what is not here lives only in the
  /// archive.
  std::unordered_map<std::string, std::string> constants;

  std::string
      eval_mode;  ///< "same", "flags" or "differs": how the evaluation graph relates to this one.
  std::string eval_reason;  ///< For "differs": file, line and what differs.
  bool training = true;
  std::string digest;         ///< Of the archive's model and extra files.
  std::string torch_version;  ///< That exported it.
  std::vector<std::string> warnings;

  const Value& value(ValueId id) const { return values[static_cast<size_t>(id.index)]; }
  Value& value(ValueId id) { return values[static_cast<size_t>(id.index)]; }
  const Operator& op(OpId id) const { return operators[static_cast<size_t>(id.index)]; }
  Operator& op(OpId id) { return operators[static_cast<size_t>(id.index)]; }
  const ModuleStack& stack_of(const Operator& op) const;
  /// Innermost module's qualified name, "" for the root.
  const std::string& module_path(const Operator& op) const;
  /// Innermost line that is not in torch's or nnscaler's package (for a model of a library, such as
  /// transformers, that is the library's); nullptr without a trace.
  const SourceLine* source_of(const Operator& op) const;
  const LeafFunction* leaf(const std::string& target) const;
  /// Whether an operator runs inside a region that backward recomputes.
  bool in_recompute_region(const Operator& op) const;
  /// Operators that read each value, in order; a graph output does not count.
  std::vector<std::vector<OpId>> readers() const;
};

}  // namespace nnscaler
