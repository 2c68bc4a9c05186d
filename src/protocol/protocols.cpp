#include "protocol/protocols.hpp"

#include <array>

#include "base/invariant.hpp"
#include "protocol/data_checksum.hpp"
#include "protocol/fence.hpp"
#include "protocol/put_with_signal.hpp"
#include "protocol/sentinel.hpp"
#include "protocol/token_flag.hpp"

namespace ubep {
namespace {

constexpr PutWithSignal put_with_signal;
constexpr TokenFlag16 token_flag_16;
constexpr TokenFlag128 token_flag_128;
constexpr TokenFlag512 token_flag_512;
constexpr DataChecksum data_checksum;
constexpr Sentinel sentinel;
constexpr Fence fence;

constexpr std::array<const RowProtocol*, 7> kProtocols = {
    &put_with_signal, &token_flag_16, &token_flag_128, &token_flag_512,
    &data_checksum,   &sentinel,      &fence};

}  // namespace

std::span<const RowProtocol* const> all_protocols() { return kProtocols; }

const RowProtocol& find_protocol(Protocol protocol) {
  if (protocol == Protocol::automatic) return put_with_signal;
  for (const RowProtocol* p : kProtocols) {
    if (p->id() == protocol) return *p;
  }
  broken_invariant("no such protocol");
}

}  // namespace ubep
