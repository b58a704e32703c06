#pragma once

// The operator table and what its entries are made of. Not for other folders: they include rule.h.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/graph/graph.h"
#include "core/ops/annotation.h"
#include "core/ops/rule.h"

namespace nnscaler {

class Binder;

/// How an entry names the dims of a call: an annotation, or a function where ranks, sizes or
/// arguments decide. `text` is shown to people.
struct Rule {
  std::string_view text;
  void (*bind)(Binder&) = nullptr;  ///< nullptr: `text` is an annotation.
};

/// One family of ATen operators with one rule.
///
/// Arguments are meant by their names in the ATen schema. `{a,b}` in targets and signatures stands
/// for either.
struct Entry {
  /// Without "aten.", and without ".default": "add.{Tensor,Scalar}", "relu{,_}". Names with a dot
  /// before the operator ("_operator.add") are written out after a colon: ":_operator.add".
  std::string_view targets;
  /// The user's names, the canonical one first; `*` is the target's own name, `*_` only where an
  /// in-place target is listed too; `F.`, `T.` and `op.` are torch.nn.functional, torch.Tensor and
  /// _operator. Groups between `|` are different
  /// functions of the user that one target stands for; what the user called chooses.
  std::string_view signatures;
  Rule rule;
  /// Arguments that the annotation describes, in the user's order; "" is all tensors in ATen's.
  std::string_view arguments = {};
  /// Groups of arguments that are linear together, separated by commas: "self+other",
  /// "input,weight". `-bias`: only where that argument is absent; `other?`: also where it is no
  /// tensor.
  std::string_view linear = {};
  /// What backward keeps: an argument; "self?other", if `other` needs a gradient; "result" or
  /// "result1", outputs.
  std::string_view saved = {};
  /// Argument that enters once where a summed name is split: a bias.
  std::string_view once = {};
  std::string_view size_argument = {};
  double flops = 1;  ///< For an element of the output, unless the rule counts itself.
  void (*after)(Binder&) = nullptr;  ///< Once the names are bound: counts, callee, …
  bool view = false;
  bool random = false;
  /// Names that only outputs have may be split (the size argument follows).
  bool splits_outputs = false;
};

using Entries = std::vector<Entry>;

// One a file of table/.
const Entries& pointwise_entries();
const Entries& cast_entries();
const Entries& product_entries();
const Entries& reduction_entries();
const Entries& normalization_entries();
const Entries& loss_entries();
const Entries& attention_entries();
const Entries& shape_entries();
const Entries& indexing_entries();
const Entries& convolution_entries();
const Entries& creation_entries();
const Entries& size_entries();
const Entries& leaf_entries();

/// An entry as it applies to one target.
struct TableTarget {
  const Entry* entry = nullptr;
  std::string family;
  std::string target;  ///< "aten.add.Tensor"; "" for a Python function known by its signature.
  /// Groups of signatures, each the canonical one first.
  std::vector<std::vector<std::string>> signatures;
  std::optional<Annotation> annotation;
};

/// All targets in the order of the files.
const std::vector<TableTarget>& table();
/// nullptr where the table has no such target.
const TableTarget* find_target(std::string_view target);
/// The entry of a Python function that stays whole, by its signature.
const TableTarget* find_leaf(std::string_view signature);

/// A rule being bound to one call.
class Binder {
 public:
  using Dims = std::vector<std::vector<int>>;
  static constexpr int kFixed = -1;

  Binder(const Graph& graph, const Operator& op, const Entry* entry);

  const Graph& graph;
  const Operator& op;
  const Entry* entry;
  BoundRule rule;

  // The call.

  int num_inputs() const { return static_cast<int>(inputs_.size()); }
  int num_outputs() const { return static_cast<int>(op.outputs.size()); }
  /// Index among the tensor inputs of an argument's (first) tensor; -1 where it has none.
  int input(std::string_view argument) const;
  /// First index and number of an argument's tensors.
  std::pair<int, int> inputs_of(std::string_view argument) const;
  // A call that does not have what its operator needs reads an empty value; archives are untrusted.
  const Value& in(int i) const {
    return i < 0 || i >= num_inputs() ? none() : graph.value(inputs_[static_cast<size_t>(i)]);
  }
  ValueId in_id(int i) const { return inputs_[static_cast<size_t>(i)]; }
  const std::vector<Extent>& in_shape(int i) const { return in(i).shape; }
  /// Whether output `o` exists and is a tensor.
  bool has_out(int o) const;
  const Value& out(int o) const {
    const bool there = o >= 0 && o < num_outputs() && op.outputs[static_cast<size_t>(o)].valid();
    return there ? graph.value(op.outputs[static_cast<size_t>(o)]) : none();
  }
  const std::vector<Extent>& out_shape(int o) const { return out(o).shape; }
  int in_rank(int i) const { return static_cast<int>(in_shape(i).size()); }
  int out_rank(int o) const { return static_cast<int>(out_shape(o).size()); }
  bool out_needs_gradient() const;
  bool is_present(std::string_view argument) const;  ///< Given, and not None.
  int64_t integer(std::string_view argument, int64_t fallback) const;
  bool flag(std::string_view argument, bool fallback) const;
  double number(std::string_view argument, double fallback) const;
  /// A list of integers (a single one counts as a list of one); nothing where it is absent, None or
  /// symbolic.
  std::optional<std::vector<int64_t>> integers(std::string_view argument) const;
  /// Argument `dim` in 0 .. rank-1; -1 where it is out of range.
  int dim(std::string_view argument, int64_t fallback, int rank) const;
  /// Argument `dim` as a list, in 0 .. rank-1; all dims where it is absent or empty.
  std::vector<bool> dims(std::string_view argument, int rank) const;

  // Names.

  /// A name, with symbolic extents not splittable.
  int name(std::string_view name, const Extent& extent);
  /// The next letter that is not taken.
  int fresh(const Extent& extent);
  BoundName& at(int name) { return rule.names[static_cast<size_t>(name)]; }
  void freeze(int name, std::string_view why);
  void sum(int name, Reduction reduction = Reduction::kSum);
  void mean(int name);
  /// A name for each dim.
  std::vector<int> fresh_dims(const std::vector<Extent>& shape);

  // Operands. kFixed stands for no name.

  void set_in(int i, const std::vector<int>& dims);
  void set_out(int o, const std::vector<int>& dims);
  void set_in(int i, Dims dims);
  void set_out(int o, Dims dims);
  void set_outs(const std::vector<int>& dims);
  /// Gives input `i` the names of a larger shape, aligned at the right; a dim of length 1 that
  /// meets a longer one stays whole. An index of -1 does nothing.
  void broadcast_in(int i, const std::vector<int>& dims);
  /// Adds a group of inputs that are linear together, if all of them and the outputs can be.
  void linear(std::vector<int> inputs);
  /// Forgets all names: nothing may be split.
  void give_up();
  /// No gradient of this input is a partial sum.
  void no_gradient(int i);
  /// FLOPs of a product: `forward` as it is, and as much for each operand that needs a gradient.
  void product_flops(double forward, std::initializer_list<int> operands);
  void flops(double forward, double backward);

  /// Whether the names fit the operands, as they do unless an archive's shapes contradict its
  /// operators.
  bool fits() const;
  /// Completes the rule from the entry and the names.
  BoundRule finish(std::string signature);

 private:
  struct Group {
    std::string_view argument;
    int first, count;
  };
  static const Value& none();
  void set_symbolic(int name) { symbolic_[static_cast<size_t>(name)] = true; }
  void settle_names();
  void settle_linear();
  void settle_saved();
  void settle_user_inputs();
  void settle_text();
  void settle_flops();

  std::vector<ValueId> inputs_;
  std::vector<Group> groups_;
  std::vector<bool> symbolic_;  // by name
  std::vector<bool> frozen_;    // by name: the rule says so, whatever its length
  char next_letter_ = 'a';
  int next_number_ = 1;
  bool flops_set_ = false;

 public:
  /// Names that fresh() must leave alone.
  std::vector<std::string> reserved;
  /// For annotations by users: the annotated inputs in their order, -1 for what is no tensor.
  std::optional<std::vector<int>> user_order;
  /// Inputs and outputs that print as `?`.
  std::vector<bool> opaque_in, opaque_out;
};

/// Binds an annotation's names to the binder's call. `annotated` are the tensor inputs that its
/// shapes stand for, -1 for none. Raises InputError where it does not fit; `what` names the
/// function.
void bind_annotation(Binder& binder, const Annotation& annotation,
                     const std::vector<int>& annotated, const std::string& what);

// Rules that several families use.

void bind_pointwise(Binder& binder);  ///< All inputs broadcast to the outputs.
inline constexpr Rule kPointwise{"* -> *", bind_pointwise};
/// Output dims are input dims; the one that argument `dim` names (the last where it is absent)
/// stays whole.
void bind_along_dim(Binder& binder);
/// Nothing may be split.
void bind_opaque(Binder& binder);
inline constexpr Rule kWhole{"replicated", bind_opaque};

/// Output dims from input 0's: `source[d]` is an input dim, kFixed for none. Dims of the input that
/// no output has stay whole, with the reason.
void copy_dims(Binder& binder, const std::vector<int>& source, std::string_view why);

/// Names input 0 and every output by matching factors of their shapes: `b s (h d) -> b s h d`.
void bind_reshape(Binder& binder);

inline constexpr std::string_view kMarkedFrozen = "marked ^";

}  // namespace nnscaler
