#include "core/ops/table.h"

// Another element type, device or memory format; nothing else changes.

namespace nnscaler {

namespace {

void settle_cast(Binder& b) {
  if (!b.has_out(0) || b.num_inputs() == 0) return;
  b.flops(0, 0);
  const bool copies = b.flag("copy", false) || b.op.target == "aten._to_copy.default";
  if (b.in(0).dtype == b.out(0).dtype && !copies) b.rule.view = b.rule.fused = true;
  // type_as reads its second operand's type only.
  if (b.num_inputs() > 1) {
    b.no_gradient(1);
    b.opaque_in[1] = true;
    b.rule.inputs[1].dims.assign(b.in_shape(1).size(), {});
  }
}

void settle_contiguous(Binder& b) {
  b.flops(0, 0);
  const Value& value = b.in(0);
  int64_t expected = 1;
  for (size_t d = value.shape.size(); d-- > 0;) {
    if (value.strides.size() != value.shape.size()) return;
    if (value.shape[d].value != 1 && value.strides[d].value != expected) return;
    expected *= value.shape[d].value;
  }
  const Argument* format = b.op.find("memory_format");
  if (format) {
    const auto* wanted = std::get_if<MemoryFormatArg>(&format->value);
    if (wanted && *wanted != MemoryFormatArg::kContiguous && *wanted != MemoryFormatArg::kPreserve)
      return;
  }
  b.rule.view = b.rule.fused = true;
}

void settle_alias(Binder& b) {
  b.flops(0, 0);
  b.rule.fused = true;
}

}  // namespace

const Entries& cast_entries() {
  static const Entries entries = {
      {.targets = "to.{dtype,dtype_layout,device,other} type_as _to_copy",
       .signatures = "T.to T.type T.type_as | T.float | T.double | T.half | T.bfloat16 | T.long | "
                     "T.int | T.short | T.char | T.byte | T.bool | T.cuda T.cpu",
       .rule = kPointwise,
       .arguments = "self",
       .linear = "self",
       .after = settle_cast},
      {.targets = "contiguous",
       .signatures = "T.contiguous",
       .rule = kPointwise,
       .linear = "self",
       .after = settle_contiguous},
      {.targets = "detach detach_ alias",
       .signatures = "torch.detach T.detach{,_} | T.view_as | op.getitem",
       .rule = kPointwise,
       .linear = "self",
       .after = settle_alias,
       .view = true},
  };
  return entries;
}

}  // namespace nnscaler
