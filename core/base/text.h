#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nnscaler {

/// `parts` joined by `separator`.
std::string join(const std::vector<std::string>& parts, std::string_view separator);

/// `text` cut at every `separator`; "" gives one empty part.
std::vector<std::string> split(std::string_view text, char separator);

/// `text` without blanks at either end.
std::string strip(std::string_view text);

/// Whether Python reserves `word`, so that nothing can have it as its name.
bool is_python_keyword(std::string_view word);

/// Levenshtein distance, insertions, deletions and substitutions each 1.
int edit_distance(std::string_view a, std::string_view b);

/// Up to `count` of `known` nearest to `name`, nearest first (ties in the order of `known`); a
/// known name that contains `name` as a component counts as near. Empty when nothing is near.
std::vector<std::string> nearest(std::string_view name, const std::vector<std::string>& known,
                                 int count = 3);

/// "; did you mean a, b or c?" from nearest(), or "".
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

/// 1536 -> "1.5 KiB", 512 -> "512 bytes".
std::string format_bytes(int64_t bytes);

/// Picoseconds as a person reads them: "12.3 us", "4.56 ms", "1.20 s".
std::string format_ps(int64_t ps);

/// "70GiB", "80 GB", "512MiB" in bytes. Raises InputError, naming `where`, without a unit or with
/// trash.
int64_t parse_bytes(std::string_view text, std::string_view where);

/// 64 bits of `text`'s content, as 16 hexadecimal digits; several GB/s, not cryptographic.
std::string digest(std::string_view text);

/// The whole file. Raises InputError when it cannot be read, naming the file and the system's
/// reason.
std::string read_file(const std::string& path);

/// What a JSON parser's exception says, without its tag ("[json.exception.type_error.302] ") and
/// not longer than a line.
std::string parser_reason(std::string_view what);

/// Writes `text` to a temporary file beside `path` and renames it, so that no half-written file is
/// ever seen; a link stays, and a device or a pipe is written to. Raises InputError when that
/// fails, naming the file and the system's reason.
void write_file(const std::string& path, std::string_view text);

}  // namespace nnscaler
