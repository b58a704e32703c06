#include "core/graph/python.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <vector>

#include "core/base/error.h"

namespace nnscaler {

namespace {

// Bytes of UTF-8 beyond ASCII count as letters, as most are in Python.
bool is_letter(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || static_cast<signed char>(c) < 0;
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return is_letter(c) || is_digit(c); }

constexpr int kMaxDepth = 100;

// Python's precedences, loosest first.
enum Precedence : int {
  kTernary,
  kOr,
  kAnd,
  kNot,
  kCompare,
  kBitOr,
  kShift,
  kSum,
  kProduct,
  kSign,
  kPower,
  kAtom
};

struct Infix {
  std::string_view function;
  std::string_view symbol;
  Precedence precedence;
};
constexpr std::array kInfix = {
    Infix{"FloorDiv", "//", kProduct},
    Infix{"CleanDiv", "//", kProduct},
    Infix{"IntTrueDiv", "/", kProduct},
    Infix{"FloatTrueDiv", "/", kProduct},
    Infix{"Mod", "%", kProduct},
    Infix{"PythonMod", "%", kProduct},
    Infix{"Pow", "**", kPower},
    Infix{"PowByNatural", "**", kPower},
    Infix{"FloatPow", "**", kPower},
    Infix{"LShift", " << ", kShift},
    Infix{"RShift", " >> ", kShift},
    Infix{"Equality", " == ", kCompare},
    Infix{"Unequality", " != ", kCompare},
    Infix{"StrictLessThan", " < ", kCompare},
    Infix{"LessThan", " <= ", kCompare},
    Infix{"StrictGreaterThan", " > ", kCompare},
    Infix{"GreaterThan", " >= ", kCompare},
    Infix{"And", " and ", kAnd},
    Infix{"Or", " or ", kOr},
    Infix{"Add", " + ", kSum},
    Infix{"Mul", "*", kProduct},
};

struct Call {
  std::string_view function;
  std::string_view python;
};
constexpr std::array kCalls = {
    Call{"Max", "max"},
    Call{"Min", "min"},
    Call{"Abs", "abs"},
    Call{"ToFloat", "float"},
    Call{"RoundToInt", "round"},
    Call{"RoundDecimal", "round"},
    Call{"floor", "math.floor"},
    Call{"FloorToInt", "math.floor"},
    Call{"ceiling", "math.ceil"},
    Call{"CeilToInt", "math.ceil"},
    Call{"TruncToInt", "math.trunc"},
    Call{"OpaqueUnaryFn_sqrt", "math.sqrt"},
    Call{"OpaqueUnaryFn_log2", "math.log2"},
};

struct Term {
  std::string text;
  int precedence = kAtom;
  std::optional<int64_t> number = {};
};

std::string wrapped(const Term& term, int at_least) {
  return term.precedence >= at_least ? term.text : fmt::format("({})", term.text);
}

class SreprParser {
 public:
  explicit SreprParser(std::string_view text) : text_(text) {}

  SizeExpression run() {
    Term term = expression();
    if (at_ != text_.size()) fail("the end");
    return {std::move(term.text), term.number, std::move(unknown_)};
  }

 private:
  [[noreturn]] void fail(std::string_view expected) const {
    throw InputError(
        fmt::format("column {} of the size expression: expected {}", at_ + 1, expected));
  }

  bool take(char c) {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!take(c)) fail(fmt::format("'{}'", c));
  }

  template <typename Belongs>
  std::string_view run_of(Belongs belongs) {
    const size_t begin = at_;
    while (at_ < text_.size() && belongs(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  std::string_view quoted() {
    expect('\'');
    const std::string_view inner = run_of([](char c) { return c != '\''; });
    expect('\'');
    return inner;
  }

  int64_t integer() {
    int64_t value = 0;
    const auto [end, status] =
        std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (status != std::errc()) fail("a 64-bit integer");
    at_ = static_cast<size_t>(end - text_.data());
    return value;
  }

  /// `, positive=True, integer=True`
  void keywords() {
    while (take(',')) {
      while (at_ < text_.size() && text_[at_] == ' ') ++at_;
      if (run_of(is_word).empty()) fail("a keyword");
      expect('=');
      if (run_of(is_word).empty()) fail("a keyword's value");
    }
  }

  Term expression() {
    if (++depth_ > kMaxDepth) fail("less nesting");
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    const std::string_view name = run_of(is_word);
    if (name.empty() || !is_letter(name[0])) fail("a function's name");
    Term result;
    if (name == "true" || name == "false") {
      result.text = name == "true" ? "True" : "False";
    } else {
      expect('(');
      result = call(name);
      expect(')');
    }
    --depth_;
    return result;
  }

  Term call(std::string_view name) {
    if (name == "Symbol" || name == "Dummy") {
      const std::string_view symbol = quoted();
      if (!is_identifier(symbol)) fail("a symbol's name");
      keywords();
      return {std::string(symbol)};
    }
    if (name == "Integer") {
      const int64_t value = integer();
      return {std::to_string(value), value < 0 ? kSign : kAtom, value};
    }
    if (name == "Rational") {
      const int64_t numerator = integer();
      expect(',');
      take(' ');
      return {fmt::format("{}/{}", numerator, integer()), kProduct};
    }
    if (name == "Float") {
      const std::string_view digits = quoted();
      double value = 0;
      const auto [end, status] =
          std::from_chars(digits.data(), digits.data() + digits.size(), value);
      if (status != std::errc() || end != digits.data() + digits.size()) fail("a number");
      keywords();
      return {std::string(digits), value < 0 ? kSign : kAtom};
    }
    std::vector<Term> arguments;
    do {
      arguments.push_back(expression());
    } while (take(','));
    return combine(name, arguments);
  }

  Term combine(std::string_view name, std::vector<Term>& arguments) {
    const auto arity = [&](size_t count) {
      if (arguments.size() != count) fail(fmt::format("{} arguments of {}", count, name));
    };
    if (name == "Add") return sum(arguments);
    if (name == "Mul") return product(arguments);
    if (name == "Identity") {
      arity(1);
      return std::move(arguments[0]);
    }
    if (name == "Not") {
      arity(1);
      return {fmt::format("not {}", wrapped(arguments[0], kNot)), kNot};
    }
    if (name == "CeilDiv") {
      arity(2);
      return {
          fmt::format("-(-{}//{})", wrapped(arguments[0], kPower), wrapped(arguments[1], kSign)),
          kSign};
    }
    if (name == "ModularIndexing") {
      arity(3);
      return {fmt::format("{}//{}%{}", wrapped(arguments[0], kProduct),
                          wrapped(arguments[1], kSign), wrapped(arguments[2], kSign)),
              kProduct};
    }
    if (name == "Where") {
      arity(3);
      return {fmt::format("{} if {} else {}", wrapped(arguments[1], kOr),
                          wrapped(arguments[0], kOr), wrapped(arguments[2], kTernary)),
              kTernary};
    }
    const auto infix = std::ranges::find(kInfix, name, &Infix::function);
    if (infix != kInfix.end()) {
      if (infix->precedence != kAnd && infix->precedence != kOr) arity(2);
      // ** binds to the right and its exponent may have a sign; comparisons do not chain.
      const bool power = infix->precedence == kPower;
      const int left = infix->precedence + (power || infix->precedence == kCompare ? 1 : 0);
      std::string text = wrapped(arguments[0], left);
      for (size_t i = 1; i < arguments.size(); ++i) {
        text += infix->symbol;
        text += wrapped(arguments[i], power ? kSign : infix->precedence + 1);
      }
      return {std::move(text), infix->precedence};
    }
    const auto function = std::ranges::find(kCalls, name, &Call::function);
    if (function == kCalls.end()) unknown_ = name;
    std::string text(function == kCalls.end() ? name : function->python);
    for (size_t i = 0; i < arguments.size(); ++i) {
      text += i == 0 ? "(" : ", ";
      text += arguments[i].text;
    }
    return {text + ")"};
  }

  static Term sum(std::vector<Term>& terms) {
    // Numbers last: "s27 + 1", "s27 - 1".
    std::stable_partition(terms.begin(), terms.end(),
                          [](const Term& term) { return !term.number; });
    std::string text = wrapped(terms[0], kSum);
    for (size_t i = 1; i < terms.size(); ++i) {
      const std::string term = wrapped(terms[i], kProduct);
      text += term[0] == '-' ? fmt::format(" - {}", term.substr(1)) : fmt::format(" + {}", term);
    }
    return {std::move(text), terms.size() == 1 ? terms[0].precedence : kSum};
  }

  static Term product(std::vector<Term>& factors) {
    const bool negated = factors.size() > 1 && factors[0].number == -1;
    const size_t first = negated ? 1 : 0;
    std::string text = negated ? "-" : "";
    for (size_t i = first; i < factors.size(); ++i) {
      if (i > first) text += '*';
      text += wrapped(factors[i], i == 0 ? kProduct : kSign);
    }
    return {std::move(text), factors.size() == 1 ? factors[0].precedence : kProduct};
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  std::string unknown_;
};

class LiteralParser {
 public:
  explicit LiteralParser(std::string_view text) : text_(text) {}

  bool run() { return expression() && (skip(), at_ == text_.size()); }

 private:
  static constexpr std::array<std::string_view, 5> kCallable = {"torch.device", "torch.Size",
                                                                "float", "complex", "slice"};

  void skip() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  bool take(std::string_view token) {
    skip();
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }

  bool expression() {
    if (++depth_ > kMaxDepth) return false;
    // "(1+2j)", "-1", "1 - 2j"
    bool good = false;
    do {
      while (take("-") || take("+")) {
      }
      good = atom();
    } while (good && (take("+") || take("-")));
    --depth_;
    return good;
  }

  /// Expressions up to `close`, each followed by `: value` when `pairs`.
  bool items(std::string_view close, bool pairs) {
    while (!take(close)) {
      if (!expression() || (pairs && take(":") && !expression())) return false;
      if (!take(",")) return take(close);
    }
    return true;
  }

  bool atom() {
    if (take("...")) return true;
    if (take("(")) return items(")", false);
    if (take("[")) return items("]", false);
    if (take("{")) return items("}", true);
    skip();
    if (at_ == text_.size()) return false;
    const char c = text_[at_];
    if (c == '\'' || c == '"') return string();
    if ((c == 'b' || c == 'r') && at_ + 1 < text_.size() &&
        (text_[at_ + 1] == '\'' || text_[at_ + 1] == '"')) {
      ++at_;
      return string();
    }
    if (is_digit(c) || c == '.') return number();
    if (!is_letter(c)) return false;
    const size_t begin = at_;
    while (at_ < text_.size() && (is_word(text_[at_]) || text_[at_] == '.')) ++at_;
    const std::string_view name = text_.substr(begin, at_ - begin);
    if (!is_dotted_name(name)) return false;
    if (!take("(")) return true;
    return std::ranges::find(kCallable, name) != kCallable.end() && items(")", false);
  }

  bool number() {
    const size_t begin = at_;
    while (at_ < text_.size() && (is_word(text_[at_]) || text_[at_] == '.' ||
                                  ((text_[at_] == '-' || text_[at_] == '+') && at_ > begin &&
                                   (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E')))) {
      ++at_;
    }
    return std::ranges::all_of(text_.substr(begin, at_ - begin), [](char c) {
      return is_digit(c) || std::string_view(".eEjJxX_abcdfABCDF+-").find(c) != std::string::npos;
    });
  }

  bool string() {
    const char mark = text_[at_++];
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (static_cast<unsigned char>(c) < ' ') return false;
      if (c == '\\') {
        ++at_;
      } else if (c == mark) {
        ++at_;
        // No ''' and no implied concatenation.
        return at_ == text_.size() || (text_[at_] != '\'' && text_[at_] != '"');
      }
    }
    return false;
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

SizeExpression parse_srepr(std::string_view srepr) { return SreprParser(srepr).run(); }

bool is_identifier(std::string_view text) {
  static constexpr std::array<std::string_view, 35> kKeywords = {
      "False", "None",     "True",  "and",    "as",   "assert", "async",  "await",    "break",
      "class", "continue", "def",   "del",    "elif", "else",   "except", "finally",  "for",
      "from",  "global",   "if",    "import", "in",   "is",     "lambda", "nonlocal", "not",
      "or",    "pass",     "raise", "return", "try",  "while",  "with",   "yield"};
  return !text.empty() && is_letter(text[0]) && std::ranges::all_of(text, is_word) &&
         std::ranges::find(kKeywords, text) == kKeywords.end();
}

bool is_dotted_name(std::string_view text) {
  if (text == "None" || text == "True" || text == "False") return true;
  while (true) {
    const size_t dot = text.find('.');
    if (!is_identifier(text.substr(0, dot))) return false;
    if (dot == std::string_view::npos) return true;
    text.remove_prefix(dot + 1);
  }
}

bool is_literal(std::string_view text) { return LiteralParser(text).run(); }

std::string print_float(double value) {
  std::string text = fmt::format("{}", value);
  if (!std::isfinite(value)) return fmt::format("float(\"{}\")", text);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

std::string quote(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (c == '\n') {
      result += "\\n";
    } else if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      result += c;
    }
  }
  return result + "\"";
}

}  // namespace nnscaler
