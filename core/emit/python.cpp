#include "core/emit/python.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <unordered_set>

#include "core/base/text.h"

namespace nnscaler::python {
namespace {

constexpr size_t kWidth = 88;

const std::unordered_set<std::string_view>& builtins() {
  static const std::unordered_set<std::string_view> set = {
      "abs",        "aiter",        "all",        "anext",      "any",           "ascii",
      "bin",        "bool",         "breakpoint", "bytearray",  "bytes",         "callable",
      "chr",        "classmethod",  "compile",    "complex",    "copyright",     "credits",
      "delattr",    "dict",         "dir",        "divmod",     "enumerate",     "eval",
      "exec",       "exit",         "filter",     "float",      "format",        "frozenset",
      "getattr",    "globals",      "hasattr",    "hash",       "help",          "hex",
      "id",         "input",        "int",        "isinstance", "issubclass",    "iter",
      "len",        "license",      "list",       "locals",     "map",           "max",
      "memoryview", "min",          "next",       "object",     "oct",           "open",
      "ord",        "pow",          "print",      "property",   "quit",          "range",
      "repr",       "reversed",     "round",      "set",        "setattr",       "slice",
      "sorted",     "staticmethod", "str",        "sum",        "super",         "tuple",
      "type",       "vars",         "zip",        "Ellipsis",   "NotImplemented"};
  return set;
}

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/// Columns that UTF-8 text takes; wide characters count as one, as near as comments need.
size_t columns(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

/// Comments and docstrings tell what an archive says: in one line, whatever it holds.
std::string printable(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return result;
}

/// Walks `text` outside of strings; `visit(i, depth)` may return true to stop. Depth is that
/// outside of the bracket at i.
template <typename Visit>
void walk(std::string_view text, Visit visit) {
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      size_t j = i + 1;
      while (j < text.size() && text[j] != c) j += text[j] == '\\' ? 2 : 1;
      i = j;
      continue;
    }
    if (c == ')' || c == ']' || c == '}') --depth;
    if (visit(i, depth)) return;
    if (c == '(' || c == '[' || c == '{') ++depth;
  }
}

/// `text` cut at top-level commas; blanks around the parts go.
std::vector<std::string_view> elements(std::string_view text) {
  std::vector<std::string_view> parts;
  size_t start = 0;
  walk(text, [&](size_t i, int depth) {
    if (depth == 0 && text[i] == ',') {
      parts.push_back(text.substr(start, i - start));
      start = i + 1;
    }
    return false;
  });
  if (start < text.size()) parts.push_back(text.substr(start));
  for (std::string_view& part : parts) {
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
  }
  return parts;
}

/// Position of the top-level " word " in text, or npos.
size_t find_top(std::string_view text, std::string_view word) {
  size_t found = std::string_view::npos;
  walk(text, [&](size_t i, int depth) {
    if (depth == 0 && text.substr(i, word.size()) == word) {
      found = i;
      return true;
    }
    return false;
  });
  return found;
}

/// Whether a top-level binary operator or comma stands in `text`.
bool has_top_operator(std::string_view text) {
  bool found = false;
  walk(text, [&](size_t i, int depth) {
    if (depth == 0 && (text[i] == ' ' || text[i] == ',' || (i > 0 && text.substr(i, 2) == "**"))) {
      found = true;
    }
    return found;
  });
  return found;
}

/// The blank before the top-level binary operator of `text` that is neither an assignment, a list
/// nor a conditional; npos for none.
size_t find_infix(std::string_view text) {
  static constexpr auto kOperators = std::to_array<std::string_view>(
      {" + ", " - ", " * ", " / ", " // ", " % ", " @ ", " & ", " | ", " ^ ", " ** ",
       " == ", " != ", " < ", " <= ", " > ", " >= ", " << ", " >> "});
  size_t found = std::string_view::npos;
  walk(text, [&](size_t i, int depth) {
    if (depth != 0 || text[i] != ' ') return text[i] == ',' && depth == 0;
    for (const std::string_view symbol : kOperators) {
      if (text.substr(i, symbol.size()) == symbol) found = i;
    }
    return true;
  });
  return found;
}

struct LastBracket {
  size_t open = std::string_view::npos;
  size_t close = 0;
  bool found() const { return open != std::string_view::npos; }
};

/// The last top-level bracket pair that ends `text`.
LastBracket last_bracket(std::string_view text) {
  LastBracket result;
  size_t open = std::string_view::npos;
  walk(text, [&](size_t i, int depth) {
    if (depth != 0) return false;
    if (text[i] == '(' || text[i] == '[' || text[i] == '{') open = i;
    if ((text[i] == ')' || text[i] == ']' || text[i] == '}') && i + 1 == text.size()) {
      result = {open, i};
    }
    return false;
  });
  return result;
}

}  // namespace

bool is_identifier(std::string_view text) {
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) return false;
  return std::all_of(text.begin(), text.end(), is_name_char) && !is_keyword(text);
}
bool is_keyword(std::string_view text) { return is_python_keyword(text); }
bool is_builtin(std::string_view text) { return builtins().count(text) > 0; }

std::string quote(std::string_view text) {
  const auto singles = std::count(text.begin(), text.end(), '\'');
  const auto doubles = std::count(text.begin(), text.end(), '"');
  const char mark = doubles > singles ? '\'' : '"';
  std::string out(1, mark);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\\' || c == mark) {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (byte < 0x20 || byte == 0x7F) {
      static const char* digits = "0123456789abcdef";
      out += "\\x";
      out += digits[byte >> 4];
      out += digits[byte & 15];
    } else {
      out += c;
    }
  }
  return out + mark;
}

std::string number(double value) {
  if (std::isnan(value)) return "float(\"nan\")";
  if (std::isinf(value)) return value > 0 ? "float(\"inf\")" : "float(\"-inf\")";
  // Shortest digits that read back the same; Python's repr() turns to exponents at 1e16 and 1e-4.
  char buffer[40];
  const double magnitude = std::fabs(value);
  const bool fixed = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string text(buffer, end);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  if (const size_t plus = text.find('+'); plus != std::string::npos) text.erase(plus, 1);
  return text;
}

std::string tuple(const std::vector<std::string>& items) {
  return "(" + join(items, ", ") + (items.size() == 1 ? ",)" : ")");
}

bool Writer::fits(int indent, std::string_view text) {
  return static_cast<size_t>(indent) + columns(text) <= kWidth;
}

void Writer::line(int indent, std::string_view text) {
  text_.append(static_cast<size_t>(indent), ' ').append(text) += '\n';
}

void Writer::blank(int count) { text_.append(static_cast<size_t>(count), '\n'); }

void Writer::statement(int indent, std::string_view text, std::string_view comment) {
  if (comment.empty()) return logical(indent, text, "");
  if (static_cast<size_t>(indent) + columns(text) + 4 + columns(comment) > kWidth) {
    this->comment(indent, comment);
    return logical(indent, text, "");
  }
  line(indent, std::string(text) + "  # " + std::string(comment));
}

void Writer::comment(int indent, std::string_view text, bool cut) {
  const size_t width = kWidth - 2 - static_cast<size_t>(indent);
  if (cut) {
    std::string kept = printable(text);
    if (columns(kept) > width) {
      while (columns(kept) > width - 4) kept.pop_back();
      while (!kept.empty() && (kept.back() & 0xC0) == 0x80) kept.pop_back();
      if (!kept.empty() && (kept.back() & 0x80) != 0) kept.pop_back();
      while (!kept.empty() && kept.back() == ' ') kept.pop_back();
      kept += " ...";
    }
    return line(indent, "# " + kept);
  }
  std::string current;
  for (const std::string& word : split(printable(text), ' ')) {
    if (!current.empty() && columns(current) + 1 + columns(word) > width) {
      line(indent, "# " + current);
      current.clear();
    }
    if (!current.empty()) current += ' ';
    current += word;
  }
  if (!current.empty()) line(indent, "# " + current);
}

std::string docstring_text(std::string_view text) {
  std::string safe;
  for (const char c : printable(text)) {
    if (c == '\\' || c == '"') safe += '\\';
    safe += c;
  }
  return safe;
}

void Writer::docstring(int indent, std::string_view text) {
  const std::string safe = docstring_text(text);
  const size_t width = kWidth - static_cast<size_t>(indent);
  std::vector<std::string> rows = {"\"\"\""};
  bool first = true;
  for (const std::string& word : split(safe, ' ')) {
    if (!first && columns(rows.back()) + 1 + columns(word) > width) {
      rows.emplace_back();
      first = true;
    }
    if (!first) rows.back() += ' ';
    rows.back() += word;
    first = false;
  }
  if (rows.size() == 2 && columns(rows[0]) + columns(rows[1]) + 4 <= width) {
    rows = {rows[0] + " " + rows[1]};
  }
  if (rows.size() == 1) return line(indent, rows[0] + "\"\"\"");
  for (const std::string& row : rows) line(indent, row);
  line(indent, "\"\"\"");
}

/// Prints `head body tail` with the body on lines of its own. An atom (a literal) puts every
/// element on a line; arguments and subscripts may share one.
void Writer::bracketed(int indent, std::string_view head, std::string_view body,
                       std::string_view tail, bool atom) {
  const int inner = indent + 4;
  line(indent, head);
  std::vector<std::string_view> parts = elements(body);
  size_t loop = find_top(body, " for ");
  if (find_top(body, ",") < loop) loop = std::string_view::npos;
  if (loop != std::string_view::npos) {  // a comprehension
    if (!atom && static_cast<size_t>(inner) + columns(body) <= kWidth) {
      line(inner, body);
    } else {
      expression(inner, body.substr(0, loop), "");
      std::string_view rest = body.substr(loop + 1);
      const LastBracket bracket = last_bracket(rest);
      if (static_cast<size_t>(inner) + columns(rest) > kWidth && bracket.found()) {
        const bool call = bracket.open > 0 && is_name_char(rest[bracket.open - 1]);
        bracketed(inner, rest.substr(0, bracket.open + 1),
                  rest.substr(bracket.open + 1, bracket.close - bracket.open - 1),
                  rest.substr(bracket.close), !call);
      } else {
        line(inner, rest);
      }
    }
  } else if (!atom && static_cast<size_t>(inner) + columns(body) <= kWidth) {
    line(inner, body);
  } else if (parts.size() == 1 && !atom) {
    expression(inner, parts[0], "");
  } else {
    for (const std::string_view part : parts) expression(inner, part, ",");
  }
  line(indent, tail);
}

/// One element of a bracket, with `suffix` behind it.
void Writer::expression(int indent, std::string_view text, std::string_view suffix) {
  const std::string flat = std::string(text) + std::string(suffix);
  const LastBracket bracket = last_bracket(text);
  const bool fits = static_cast<size_t>(indent) + columns(flat) <= kWidth;
  if (const size_t infix = fits ? std::string_view::npos : find_infix(text);
      infix != std::string_view::npos) {
    expression(indent, text.substr(0, infix), "");
    return expression(indent, text.substr(infix + 1), suffix);
  }
  if (fits || !bracket.found() || bracket.close == bracket.open + 1) return line(indent, flat);
  const char before = bracket.open == 0 ? ' ' : text[bracket.open - 1];
  const bool atom = !(is_name_char(before) || before == ')' || before == ']');
  bracketed(indent, text.substr(0, bracket.open + 1),
            text.substr(bracket.open + 1, bracket.close - bracket.open - 1),
            std::string(text.substr(bracket.close)) + std::string(suffix), atom);
}

void Writer::logical(int indent, std::string_view text, std::string_view suffix) {
  const auto fits = [&](size_t length) { return static_cast<size_t>(indent) + length <= kWidth; };
  if (fits(columns(text) + columns(suffix))) {
    return line(indent, std::string(text) + std::string(suffix));
  }
  if (text.back() == ':') {  // def, for, with, class
    return expression(indent, text.substr(0, text.size() - 1), ":");
  }
  if (text.starts_with("return ")) {
    const std::string_view value = text.substr(7);
    if (find_top(value, ",") != std::string_view::npos) {
      return bracketed(indent, "return (", value, ")", true);
    }
    if (!has_top_operator(value)) return expression(indent, text, "");
    return bracketed(indent, "return (", value, ")", false);
  }
  const size_t equal = find_top(text, " = ");
  if (equal == std::string_view::npos) return expression(indent, text, "");
  const std::string_view target = text.substr(0, equal);
  const std::string_view value = text.substr(equal + 3);
  const LastBracket bracket = last_bracket(value);
  const bool splittable =
      bracket.found() && !has_top_operator(value) && bracket.close > bracket.open + 1;
  if (splittable && fits(columns(text.substr(0, equal + 3 + bracket.open + 1)))) {
    return expression(indent, text, "");
  }
  const bool single = find_top(target, ",") == std::string_view::npos;
  // Brackets that do not make it fit are not put.
  if (single && !splittable && !has_top_operator(value) && !fits(4 + columns(value))) {
    return line(indent, text);
  }
  if (fits(columns(target) + 4) || single) {
    line(indent, std::string(target) + " = (");
    expression(indent + 4, value, "");
    return line(indent, ")");
  }
  line(indent, "(");
  for (const std::string_view part : elements(target)) line(indent + 4, std::string(part) + ",");
  const std::string rest = ") = " + std::string(value);
  if (fits(columns(rest)) || !splittable) return line(indent, rest);
  const size_t open = 4 + bracket.open;
  const char before = bracket.open == 0 ? ' ' : value[bracket.open - 1];
  bracketed(indent, std::string_view(rest).substr(0, open + 1),
            value.substr(bracket.open + 1, bracket.close - bracket.open - 1),
            value.substr(bracket.close), !(is_name_char(before) || before == ')' || before == ']'));
}

bool Writer::uses(std::string_view word) const {
  bool docstring = false;
  size_t start = 0;
  while (start < text_.size()) {
    size_t end = text_.find('\n', start);
    if (end == std::string::npos) end = text_.size();
    std::string_view row(text_.data() + start, end - start);
    start = end + 1;
    while (!row.empty() && row.front() == ' ') row.remove_prefix(1);
    if (row.starts_with("\"\"\"")) {
      docstring = !(row.size() > 3 && row.ends_with("\"\"\""));
      continue;
    }
    if (docstring) {
      docstring = !row.ends_with("\"\"\"");
      continue;
    }
    if (row.starts_with("#")) continue;
    bool found = false;
    walk(row, [&](size_t i, int) {
      if (row[i] == '#') return true;
      if (row.substr(i, word.size()) == word &&
          (i == 0 || (!is_name_char(row[i - 1]) && row[i - 1] != '.')) &&
          i + word.size() < row.size() && row[i + word.size()] == '.') {
        found = true;
      }
      return found;
    });
    if (found) return true;
  }
  return false;
}

}  // namespace nnscaler::python
