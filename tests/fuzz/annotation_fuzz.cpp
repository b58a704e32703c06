#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/error.h"
#include "core/ops/annotation.h"

/// Reads an annotation: one that its own text gives again, or an InputError.
inline int fuzz_annotation(const uint8_t* data, size_t size) {
  using namespace nnscaler;
  try {
    const Annotation annotation =
        parse_annotation(std::string(reinterpret_cast<const char*>(data), size));
    const std::string text = to_string(annotation);
    try {
      check(parse_annotation(text) == annotation, "an annotation's text reads otherwise: " + text);
    } catch (const InputError& error) {
      throw InternalError(std::string("an annotation's own text is refused: ") + error.what());
    }
  } catch (const InputError&) {
  }
  return 0;
}

#ifdef NNSCALER_FUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fuzz_annotation(data, size);
}
#endif
