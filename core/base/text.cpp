#include "core/base/text.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <sstream>
#include <system_error>
#include <unordered_set>

#include "core/base/error.h"

namespace nnscaler {

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::string strip(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

bool is_python_keyword(std::string_view word) {
  static const std::unordered_set<std::string_view> keywords = {
      "False", "None",     "True",  "and",    "as",   "assert", "async",  "await",    "break",
      "class", "continue", "def",   "del",    "elif", "else",   "except", "finally",  "for",
      "from",  "global",   "if",    "import", "in",   "is",     "lambda", "nonlocal", "not",
      "or",    "pass",     "raise", "return", "try",  "while",  "with",   "yield"};
  return keywords.count(word) > 0;
}

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

namespace {

std::string lower_case(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

}  // namespace

std::vector<std::string> nearest(std::string_view name, const std::vector<std::string>& known,
                                 int count) {
  struct Candidate {
    int distance;
    size_t index;
  };
  const std::string wanted = lower_case(name);
  const std::string last = wanted.substr(wanted.rfind('.') + 1);
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < known.size(); ++i) {
    const std::string other = lower_case(known[i]);
    int distance = edit_distance(wanted, other);
    const std::vector<std::string> components = split(other, '.');
    if (std::find(components.begin(), components.end(), last) != components.end()) {
      distance = std::min(distance, 1);
    }
    if (distance <= std::max<int>(2, static_cast<int>(wanted.size()) / 3)) {
      candidates.push_back({distance, i});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.distance < b.distance; });
  std::vector<std::string> result;
  for (const Candidate& candidate : candidates) {
    if (static_cast<int>(result.size()) == count) break;
    result.push_back(known[candidate.index]);
  }
  return result;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  const std::vector<std::string> names = nearest(name, known);
  if (names.empty()) return "";
  std::string text = "; did you mean " + names[0];
  for (size_t i = 1; i < names.size(); ++i) {
    text += (i + 1 == names.size() ? " or " : ", ") + names[i];
  }
  return text + "?";
}

std::string format_bytes(int64_t bytes) {
  if (std::abs(bytes) < 1024) return fmt::format("{} bytes", bytes);
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  int unit = -1;
  while (std::abs(value) >= 1024 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string format_ps(int64_t ps) {
  const double value = static_cast<double>(ps);
  if (value < 1e9) return fmt::format("{:.1f} us", value / 1e6);
  if (value < 1e12) return fmt::format("{:.2f} ms", value / 1e9);
  return fmt::format("{:.2f} s", value / 1e12);
}

int64_t parse_bytes(std::string_view text, std::string_view where) {
  static const std::vector<std::pair<std::string, double>> kUnits = {
      {"KiB", 1024.0},
      {"MiB", 1024.0 * 1024},
      {"GiB", 1024.0 * 1024 * 1024},
      {"TiB", 1024.0 * 1024 * 1024 * 1024},
      {"KB", 1e3},
      {"MB", 1e6},
      {"GB", 1e9},
      {"TB", 1e12},
      {"B", 1.0}};
  const std::string stripped = strip(text);
  double value = 0;
  const auto [end, status] =
      std::from_chars(stripped.data(), stripped.data() + stripped.size(), value);
  const std::string unit = strip(std::string_view(end, stripped.data() + stripped.size()));
  if (status == std::errc() && std::isfinite(value) && value > 0) {
    for (const auto& [name, factor] : kUnits) {
      const double bytes = value * factor;
      if (unit == name && bytes < 9e18) return static_cast<int64_t>(std::llround(bytes));
    }
  }
  throw InputError(
      fmt::format("{}: \"{}\" is not an amount of memory; write a positive number with its unit, "
                  "such as 70GiB or 512MiB",
                  where, text));
}

std::string digest(std::string_view text) {
  // Eight bytes a step. Each step is a bijection of the state, so two texts that differ in one word
  // never meet by accident of the rest.
  constexpr uint64_t kPrime = 0x9e3779b97f4a7c15ULL;
  uint64_t hash = text.size() * kPrime;
  const auto mix = [&](uint64_t word) {
    hash = (hash ^ word) * kPrime;
    hash ^= hash >> 32;
  };
  for (; text.size() >= 8; text.remove_prefix(8)) {
    uint64_t word;
    std::memcpy(&word, text.data(), 8);
    mix(word);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, text.data(), text.size());
  mix(rest);
  return fmt::format("{:016x}", hash);
}

std::string read_file(const std::string& path) {
  errno = 0;
  std::error_code status;
  if (std::filesystem::is_directory(path, status)) {
    throw InputError(path + ": is a directory, not a file");
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw InputError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  std::ostringstream text;
  text << stream.rdbuf();
  if (stream.bad()) {
    throw InputError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  }
  return std::move(text).str();
}

std::string parser_reason(std::string_view what) {
  if (what.starts_with('[')) what.remove_prefix(std::min(what.find("] ") + 2, what.size()));
  constexpr size_t kLongest = 200;
  std::string reason(what.substr(0, kLongest));
  for (char& c : reason) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  return what.size() > kLongest ? reason + "..." : reason;
}

void write_file(const std::string& path, std::string_view text) {
  const auto fail = [&](const std::string& reason) {
    throw InputError(fmt::format("{}: cannot be written: {}", path, reason));
  };
  std::error_code status;
  // What a link leads to is written, not the link; canonical() fails for what isn't there yet.
  std::filesystem::path target = std::filesystem::canonical(path, status);
  if (status) target = path;
  const std::filesystem::file_type type = std::filesystem::status(target, status).type();
  if (type == std::filesystem::file_type::directory) fail("it is a directory");
  const std::filesystem::path folder = target.parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder, status)) {
    fail(fmt::format("there is no directory {}", folder.string()));
  }
  const bool in_place =
      type != std::filesystem::file_type::regular && type != std::filesystem::file_type::not_found;
  const std::string temporary =
      in_place ? target.string() : fmt::format("{}.tmp{}", target.string(), getpid());
  const auto clean_up = [&] {
    std::error_code ignored;
    if (!in_place) std::filesystem::remove(temporary, ignored);
  };
  errno = 0;
  std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
  stream.write(text.data(), static_cast<std::streamsize>(text.size()));
  stream.close();
  if (!stream) {
    const std::string reason = std::strerror(errno);
    clean_up();
    fail(reason);
  }
  if (in_place) return;
  std::filesystem::rename(temporary, target, status);
  if (status) {
    clean_up();
    fail(status.message());
  }
}

}  // namespace nnscaler
