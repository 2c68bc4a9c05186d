// The secret that the ranks of a job share, and proofs of knowing it.
//
// A proof is a keyed BLAKE2b hash (libsodium's crypto_generichash) of who proves, the meeting and
// two random numbers, one from each side: it is of no use in another meeting, or to the other side.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ubep {

class JobKey {
 public:
  static constexpr std::size_t kBytes = 32;
  using Nonce = std::array<std::byte, kBytes>;
  using Proof = std::array<std::byte, kBytes>;

  JobKey() = default;
  // Of any length; empty = none. Throws Error{setup} in a build without libsodium.
  explicit JobKey(const std::string& secret);

  bool given() const { return given_; }

  enum class Side : unsigned char { host = 1, guest = 2, both = 3 };
  struct Claim {
    Side side;
    std::string meeting;  // whatever must be the same on both sides
    Nonce guest;
    Nonce host;
  };
  Proof prove(const Claim& claim) const;
  bool verify(const Claim& claim, const Proof& proof) const;

  // A key for what is said once both sides have proved themselves; of this claim alone.
  JobKey session(Claim claim) const;
  // Where something that is said belongs.
  struct Stamp {
    Side from;
    std::uint32_t guest;   // its rank
    std::uint64_t number;  // of what this side says
  };
  Proof sign(const Stamp& stamp, std::string_view said) const;
  bool verify(const Stamp& stamp, std::string_view said, const Proof& proof) const;

 private:
  std::array<std::byte, kBytes> key_ = {};
  bool given_ = false;
};

JobKey::Nonce fresh_nonce();

}  // namespace ubep
