#include "fabric/shm/job_key.hpp"

#include <sys/random.h>

#ifdef UBEP_HAVE_SODIUM
#include <sodium.h>
#endif

#include "ubep/status.hpp"

namespace ubep {

JobKey::Nonce fresh_nonce() {
  JobKey::Nonce nonce;
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    throw Error(ErrorCode::setup, "getrandom failed");
  }
  return nonce;
}

#ifdef UBEP_HAVE_SODIUM

namespace {

constexpr char kDomain[] = "ubep job key, version 1";

bool are_equal(const JobKey::Proof& a, const JobKey::Proof& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

const unsigned char* bytes_of(const void* data) { return static_cast<const unsigned char*>(data); }

class Hash {
 public:
  explicit Hash(const std::array<std::byte, JobKey::kBytes>* key) {
    crypto_generichash_init(&state_, key == nullptr ? nullptr : bytes_of(key->data()),
                            key == nullptr ? 0 : key->size(), JobKey::kBytes);
    add(kDomain, sizeof(kDomain));
  }
  void add(const void* data, std::size_t size) {
    crypto_generichash_update(&state_, bytes_of(data), size);
  }
  std::array<std::byte, JobKey::kBytes> finish() {
    std::array<std::byte, JobKey::kBytes> result;
    crypto_generichash_final(&state_, reinterpret_cast<unsigned char*>(result.data()),
                             result.size());
    return result;
  }

 private:
  crypto_generichash_state state_;
};

}  // namespace

JobKey::JobKey(const std::string& secret) : given_(!secret.empty()) {
  if (!given_) return;
  if (sodium_init() < 0) throw Error(ErrorCode::setup, "libsodium cannot be initialised");
  Hash hash(nullptr);
  hash.add(secret.data(), secret.size());
  key_ = hash.finish();
}

JobKey::Proof JobKey::prove(const Claim& claim) const {
  Hash hash(&key_);
  hash.add(&claim.side, sizeof(claim.side));
  hash.add(claim.guest.data(), claim.guest.size());
  hash.add(claim.host.data(), claim.host.size());
  hash.add(claim.meeting.data(), claim.meeting.size());
  return hash.finish();
}

bool JobKey::verify(const Claim& claim, const Proof& proof) const {
  return are_equal(prove(claim), proof);
}

JobKey JobKey::session(Claim claim) const {
  claim.side = Side::both;  // no side ever proves this: it stays a secret
  JobKey key;
  key.key_ = prove(claim);
  key.given_ = true;
  return key;
}

JobKey::Proof JobKey::sign(const Stamp& stamp, std::string_view said) const {
  Hash hash(&key_);
  hash.add(&stamp.from, sizeof(stamp.from));
  std::array<unsigned char, 12> numbers = {};  // the same on all machines
  for (std::size_t i = 0; i < 4; ++i) numbers[i] = (stamp.guest >> (8 * i)) & 0xFF;
  for (std::size_t i = 0; i < 8; ++i) numbers[4 + i] = (stamp.number >> (8 * i)) & 0xFF;
  hash.add(numbers.data(), numbers.size());
  hash.add(said.data(), said.size());
  return hash.finish();
}

bool JobKey::verify(const Stamp& stamp, std::string_view said, const Proof& proof) const {
  return are_equal(sign(stamp, said), proof);
}

#else

JobKey::JobKey(const std::string& secret) {
  if (secret.empty()) return;
  throw Error(ErrorCode::setup,
              "a job key is given, expected none: this build has no libsodium (libsodium-dev)");
}

JobKey::Proof JobKey::prove(const Claim&) const { return {}; }
bool JobKey::verify(const Claim&, const Proof&) const { return false; }
JobKey JobKey::session(Claim) const { return {}; }
JobKey::Proof JobKey::sign(const Stamp&, std::string_view) const { return {}; }
bool JobKey::verify(const Stamp&, std::string_view, const Proof&) const { return false; }

#endif

}  // namespace ubep
