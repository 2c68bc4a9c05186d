#include "ubep/types.hpp"

#include "bindings.hpp"
#include "ubep/trace.hpp"

namespace ubep::python {

void bind_types(nb::module_& module) {
  nb::enum_<DType>(module, "DType", "Element type of rows; u8 are bytes that nobody looks into.")
      .value("bf16", DType::bf16)
      .value("fp16", DType::fp16)
      .value("fp32", DType::fp32)
      .value("u8", DType::u8);
  nb::enum_<Layout>(module, "Layout", "Arrangement of received rows.")
      .value("rank_major", Layout::rank_major, "A token once for each rank; its owner weights it.")
      .value("expert_major", Layout::expert_major, "One row per choice, packed by local expert.")
      .value("expert_padded", Layout::expert_padded, "The same, each expert in `capacity` rows.");
  nb::enum_<Path>(module, "Path", "How rows reach their owner.")
      .value("automatic", Path::automatic)
      .value("read", Path::read)
      .value("pull", Path::pull)
      .value("push", Path::push)
      .value("bsp", Path::bsp)
      .value("allgather", Path::allgather)
      .value("relay", Path::relay);
  nb::enum_<Protocol>(module, "Protocol", "How pushed rows are known to have arrived.")
      .value("automatic", Protocol::automatic)
      .value("put_with_signal", Protocol::put_with_signal)
      .value("token_flag_16", Protocol::token_flag_16)
      .value("token_flag_128", Protocol::token_flag_128)
      .value("token_flag_512", Protocol::token_flag_512)
      .value("checksum", Protocol::checksum)
      .value("sentinel", Protocol::sentinel)
      .value("fence", Protocol::fence);
  nb::enum_<Store>(module, "Store", "How lines that cross between ranks are stored.")
      .value("automatic", Store::automatic)
      .value("near", Store::near)
      .value("far", Store::far);
  nb::enum_<Reduction>(module, "Reduction", "What the bits of a combined row depend on.")
      .value("automatic", Reduction::automatic)
      .value("exact", Reduction::exact)
      .value("per_rank", Reduction::per_rank)
      .value("per_host", Reduction::per_host);
  nb::enum_<Weighting>(module, "Weighting", "Who multiplies rank_major rows by their weights.")
      .value("kernel", Weighting::kernel)
      .value("owner", Weighting::owner);
  nb::enum_<Quant>(module, "Quant", "Format of quantised rows.")
      .value("none", Quant::none)
      .value("fp8", Quant::fp8)
      .value("fp8_pow2", Quant::fp8_pow2)
      .value("fp8_ue8m0", Quant::fp8_ue8m0)
      .value("int8", Quant::int8)
      .value("mxfp8", Quant::mxfp8);
  nb::enum_<Placement>(module, "Placement", "Distance of two CPUs as a flag sees it.")
      .value("unknown", Placement::unknown)
      .value("smt", Placement::smt)
      .value("near", Placement::near)
      .value("far", Placement::far);
  nb::enum_<SendOrder>(module, "SendOrder", "In what order several lanes push rows.")
      .value("scheduled", SendOrder::scheduled)
      .value("by_token", SendOrder::by_token);
}

}  // namespace ubep::python
