#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/emit/classes.h"
#include "core/emit/expression.h"
#include "core/emit/python.h"

namespace nnscaler::emission {

/// What a statement reads: a variable, or what lies on a path from one or from `self`.
struct Use {
  Entity entity;  ///< A value or a module …
  bool has_path = false;
  std::vector<std::string> path;  ///< … or what this path from `self` leads to.
  /// In a loop: the variable that stands for it, or for the start of `path` …
  int variable = -1;
  int module = -1;      ///< … which is then this module.
  bool inside = false;  ///< Within the loop that makes the value, where it is no list's element.
};

/// A repeated stretch: `for layer in self.layers:`.
struct Loop {
  int count = 0;
  /// One thing that each iteration takes the next of.
  struct Iterable {
    int list = -1;  ///< A list variable; or …
    int base = -1;  ///< … a list of modules on a path from this variable (-1: from `self`) …
    int base_module = -1;
    std::vector<std::string> path;
    int start = 0;      ///< The first iteration's element …
    int module = -1;    ///< … and its module.
    int variable = -1;  ///< What an element is called.
  };
  std::vector<Iterable> iterables;
  /// A value of one iteration that the next one reads.
  struct Carried {
    int value = -1;         ///< As the first iteration makes it.
    Use initial;            ///< What the first iteration reads.
    int variable = -1;      ///< Holds it between iterations.
    bool separate = false;  ///< The old one is read after the new one is made.
  };
  std::vector<Carried> carried;
  struct Collected {
    int value = -1;     ///< As the first iteration makes it.
    int variable = -1;  ///< The list.
  };
  std::vector<Collected> collected;
};

/// A statement, or several under one head.
struct Node {
  enum class Kind : uint8_t { kOp, kCall, kBlock, kLoop };
  Kind kind = Kind::kOp;
  int index = -1;            ///< Operator, call, block or loop.
  std::vector<Use> uses;     ///< kOp: one for each operand; kCall: the module, then the inputs.
  std::vector<int> results;  ///< Values that it makes; -1 where nobody reads one.
  std::vector<Node> children;
  int first_leaf = 0, num_leaves = 1;  ///< Statements, counted in order, loops unrolled.
};

/// A name in a function.
struct Variable {
  std::string hint;
  std::string name;
  int defined = -1;  ///< Statement.
  int last = -1;     ///< Last statement that reads it.
  int size = 0;      ///< Of a list: its elements.
};

/// Where a value lies in a list variable.
struct Element {
  int list = -1;
  int index = 0;
};

/// One result of a function: a value, or a list of them in one variable.
struct ResultItem {
  std::vector<int> outputs;  ///< Into Method::outputs; several for a list.
  bool is_list = false;
};

/// A function of the generated file: its statements, then its names, then its text.
struct Function {
  int class_index = -1;
  int method = -1;
  int call = -1;  ///< The one that is printed.
  std::vector<Node> nodes;
  std::vector<Loop> loops;
  std::vector<Variable> variables;
  std::vector<int> parameters;  ///< Variables, one for each input of the call.
  std::vector<ResultItem> results;
  std::unordered_map<int, int> variable_of;          ///< Value -> variable.
  std::unordered_map<int, int> variable_of_module;   ///< Module -> variable.
  std::unordered_map<int, int> canonical;            ///< Value of a later iteration -> the first's.
  std::unordered_map<int, Element> element_of;       ///< Values without a variable of their own …
  std::unordered_map<int, Element> also_element_of;  ///< … and with one.

  std::set<int> read_once;  ///< Values that one statement reads, once, and nothing else.

  /// The variable to read for a value: its own, or the list that holds it and where (else -1).
  struct Place {
    int variable = -1;
    int index = -1;
  };
  Place place_of(int value, bool inside = false) const;
};

/// A name at the entry of the root's function.
struct RootInput {
  int value = -1;      ///< What it names; -1 for a parameter that is taken apart.
  std::string name;    ///< As far as possible.
  bool fixed = false;  ///< It is a parameter of forward: the name is final.
};

/// All functions of all classes. Statements first, callees before callers; then names, callers
/// before callees; then text.
class Bodies {
 public:
  /// `reserved` are names that no variable may shadow.
  Bodies(const Classes& classes, Speller& speller, const std::vector<RootInput>& inputs,
         std::set<std::string> reserved);

  /// Prints the statements of a method, and `return`: the root's only where `single` says that its
  /// one value is all there is to return and the last statement makes it. Returns whether it did.
  bool print(python::Writer& writer, int class_index, int method, int indent, bool single);
  /// Names of a method's parameters without `self`.
  std::vector<std::string> parameters(int class_index, int method) const;
  /// In the root's function: text for values, `*xs` where a run of them is a whole list.
  std::vector<std::string> root_values(const std::vector<int>& values) const;
  /// Name of an input in the root's function; "" where nobody reads it.
  std::string root_name(int value) const;
  /// "self.layers[0].weight"
  std::string path_text(const std::string& self, int module,
                        const std::vector<std::string>& path) const;

 private:
  const Function& function(int class_index, int method) const {
    return functions_[static_cast<size_t>(class_index)][static_cast<size_t>(method)];
  }
  void name(Function& f);
  void pass_names(const Function& f, const std::vector<Node>& nodes);
  void print_nodes(python::Writer& writer, const Function& f, const std::vector<Node>& nodes,
                   int indent);
  void print_op(python::Writer& writer, const Function& f, const std::vector<Node>& nodes,
                size_t& next, int indent);
  Speller::Result spell(const Function& f, const Node& node, const std::string* first);
  std::string assigned(const Function& f, const Node& node, const std::string& text) const;
  void print_call(python::Writer& writer, const Function& f, const Node& node, int indent);
  void print_loop(python::Writer& writer, const Function& f, const Node& node, int indent);
  void print_block(python::Writer& writer, const Function& f, const Node& node, int indent);
  void print_source(python::Writer& writer, const Function& f, const Node& node, int indent);
  const SourceLine* source_of(const Function& f, const Node& node) const;
  const Node* returned(const Function& f) const;
  std::string text(const Function& f, const Use& use) const;
  std::string value_text(const Function& f, int value, bool inside = false) const;
  std::vector<std::string> run_text(const Function& f, const std::vector<int>& values) const;
  std::string number_text(const Function& f, int op, int argument, int element,
                          const std::string& literal) const;

  const Classes& classes_;
  const Scopes& scopes_;
  Speller& speller_;
  std::set<std::string> reserved_;
  std::unordered_map<std::string, int> module_ids_;
  std::vector<std::vector<Function>> functions_;
  const SourceLine* last_source_ = nullptr;
  const Node* last_ = nullptr;  ///< The statement to return.
};

/// The line of the user's that an operator belongs to, as seen in the call `frame` levels deep in
/// its module stack; nullptr where the archive does not tell.
const SourceLine* source_line(const Graph& graph, const Operator& op, int frame);

}  // namespace nnscaler::emission
