#include "sim/memory.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ubep::sim {
namespace {

// Of hundreds of ranks, each uses some pages of what a real one would fill.
constexpr auto kSparse = PrivateRows::Use::sparse;

bool overlap(std::uint64_t a, std::uint64_t a_bytes, std::uint64_t b, std::uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

Memory::Memory(const EventQueue& queue, const MemoryOptions& options,
               std::function<void(int, Time)> tell)
    : queue_(queue),
      options_(options),
      tell_(std::move(tell)),
      random_(options.seed),
      nodes_(options.segment_bytes.size()),
      pairs_(nodes_.size() * nodes_.size()) {
  for (std::size_t r = 0; r < nodes_.size(); ++r) {
    nodes_[r].segment = PrivateRows(options_.segment_bytes[r], kSparse);
    if (!options_.inbox_bytes.empty())
      nodes_[r].inbox = PrivateRows(options_.inbox_bytes[r], kSparse);
    if (options_.weak) nodes_[r].pictures.resize(nodes_.size());
    if (options_.moves_rows) nodes_[r].outgoing.resize(nodes_.size());
  }
}

const std::byte* Memory::seen(int rank, int peer) {
  if (!options_.weak || rank == peer) return own(peer);
  PrivateRows& picture = node(rank).pictures[static_cast<std::size_t>(peer)];
  const std::uint64_t bytes = options_.segment_bytes[static_cast<std::size_t>(peer)];
  if (picture.data() == nullptr) picture = PrivateRows(bytes, kSparse);
  return picture.data();
}

std::byte* Memory::outgoing(int rank, int peer) {
  if (!options_.moves_rows) return inbox(peer);  // addresses only
  PrivateRows& rows = node(rank).outgoing[static_cast<std::size_t>(peer)];
  const std::uint64_t bytes = options_.inbox_bytes[static_cast<std::size_t>(peer)];
  if (rows.data() == nullptr) rows = PrivateRows(bytes, kSparse);
  return rows.data();
}

// Makes bytes appear at `base` + range of rank `to`, unit by unit. Returns when the last one does.
Time Memory::spread(int from, int to, std::byte* base, Range range, const Bytes& bytes) {
  const Time now = queue_.now();
  Time last = now;
  Time floor = now;
  const auto target = reinterpret_cast<std::uint64_t>(base + range.offset);
  for (const Unit& unit : node(to).coming) {
    if (overlap(reinterpret_cast<std::uint64_t>(unit.to), unit.count, target, range.bytes)) {
      floor = std::max(floor, unit.at);
    }
  }
  for (std::uint64_t done = 0; done < range.bytes;) {
    const std::uint64_t left = options_.unit - (range.offset + done) % options_.unit;
    const std::uint64_t count = std::min(left, range.bytes - done);
    Time at = std::max(floor, now + random_.up_to(options_.delay));
    if (options_.in_order) at = pair(from, to).last_unit = std::max(at, pair(from, to).last_unit);
    last = std::max(last, at);
    node(to).coming.push_back({at, units_++, base + range.offset + done, bytes,
                               static_cast<std::uint32_t>(done),
                               static_cast<std::uint32_t>(count)});
    std::push_heap(node(to).coming.begin(), node(to).coming.end());
    done += count;
  }
  node(from).last_unit = std::max(node(from).last_unit, last);
  return last;
}

void Memory::absorb(int rank) {
  std::vector<Unit>& coming = node(rank).coming;
  while (!coming.empty() && coming.front().at <= queue_.now()) {
    std::pop_heap(coming.begin(), coming.end());
    const Unit& unit = coming.back();
    std::memcpy(unit.to, unit.bytes->data() + unit.first, unit.count);
    coming.pop_back();
  }
}

void Memory::commit(int rank, Range range, Store store, std::vector<Loose>& loose) {
  if (!options_.weak || range.bytes == 0) return;
  const std::byte* data = own(rank) + range.offset;
  const auto bytes = std::make_shared<const std::vector<std::byte>>(data, data + range.bytes);
  for (int p = 0; p < size(); ++p) {
    if (p == rank) continue;
    auto* picture = const_cast<std::byte*>(seen(p, rank));
    const Time at = spread(rank, p, picture, range, bytes);
    if (store == Store::far) {
      loose.push_back({p, at, 0});
    } else {
      pair(rank, p).covered = std::max(pair(rank, p).covered, at);
    }
  }
}

std::uint64_t Memory::put(int rank, int peer, Range range, Store store, std::vector<Loose>& loose) {
  Put put{.rank = rank, .peer = peer, .range = range};
  if (options_.moves_rows) {
    std::byte* data = outgoing(rank, peer) + range.offset;
    put.bytes = std::make_shared<const std::vector<std::byte>>(data, data + range.bytes);
    std::fill_n(data, range.bytes, std::byte{0xff});  // who puts them once more puts NaNs
  }
  const std::uint64_t number = add(std::move(put), store == Store::near);
  if (store == Store::far) loose.push_back({peer, 0, number});
  if (options_.moves_rows) open_.push_back(number);
  return number;
}

std::uint64_t Memory::put_replica(int rank, int peer) {
  return add({.rank = rank, .peer = peer, .range = {}}, true);
}

std::uint64_t Memory::add(Put put, bool is_ordered) {
  std::uint64_t number = 0;
  if (free_.empty()) {
    puts_.emplace_back();
    number = puts_.size();
  } else {
    number = free_.back();
    free_.pop_back();
  }
  Pair& p = pair(put.rank, put.peer);
  if (is_ordered) put.number = ++p.issued;
  ++node(put.rank).under_way;
  ++p.unacknowledged;
  puts_[number - 1] = std::move(put);
  return number;
}

void Memory::land(std::uint64_t number) {
  Put& put = puts_[number - 1];
  put.landed_at = queue_.now();
  if (put.bytes != nullptr) write_landed(number);
  --node(put.rank).under_way;
  Pair& p = pair(put.rank, put.peer);
  --p.unacknowledged;
  if (options_.tells_puts) {
    if (!options_.moves_rows && put.range.bytes != 0) {
      node(put.peer).landed.insert(put.range.offset);
    }
    tell_(put.peer, put.landed_at);
  }
  p.last_landing = std::max(p.last_landing, put.landed_at);
  if (options_.tells_acks) tell_(put.rank, p.last_landing + way_back_(put.peer, put.rank));
  if (put.number == 0) return;  // order() has not come yet
  p.covered = std::max(p.covered, put.landed_at);
  note_landed(p, put.number);
  resolve(put.rank, put.peer);
  free_.push_back(number);
}

bool Memory::flushed(int rank, int peer) {
  const Pair& p = pair(rank, peer);
  if (p.unacknowledged != 0) return false;
  return p.last_landing == 0 || p.last_landing + way_back_(peer, rank) <= queue_.now();
}

void Memory::note_landed(Pair& p, std::uint64_t number) {
  if (number != p.landed + 1) {
    p.early.push_back(number);
    return;
  }
  ++p.landed;
  for (auto next = p.early.end();
       (next = std::find(p.early.begin(), p.early.end(), p.landed + 1)) != p.early.end();) {
    *next = p.early.back();
    p.early.pop_back();
    ++p.landed;
  }
}

// Puts that were issued later and landed earlier keep their bytes.
void Memory::write_landed(std::uint64_t number) {
  Put& put = puts_[number - 1];
  const auto self = std::find(open_.begin(), open_.end(), number);
  for (auto older = open_.begin(); older != self; ++older) {
    Put& other = puts_[*older - 1];
    if (other.peer == put.peer &&
        overlap(other.range.offset, other.range.bytes, put.range.offset, put.range.bytes)) {
      other.overtaken.push_back(put.range);
    }
  }
  open_.erase(self);
  std::byte* base = inbox(put.peer);
  // The parts that no later put has written.
  for (std::uint64_t at = put.range.offset, end = at + put.range.bytes; at < end;) {
    std::uint64_t stop = end;
    bool skip = false;
    for (const Range& later : put.overtaken) {
      const std::uint64_t later_end = later.offset + later.bytes;
      if (later.offset <= at && at < later_end) {
        skip = true;
        stop = std::min(end, later_end);
        break;
      }
      if (later.offset > at) stop = std::min(stop, later.offset);
    }
    if (!skip) write_part(put, base, {at, stop - at});
    at = stop;
  }
}

void Memory::write_part(Put& put, std::byte* base, Range part) {
  const std::byte* data = put.bytes->data() + (part.offset - put.range.offset);
  if (!options_.weak) {
    std::memcpy(base + part.offset, data, part.bytes);
    return;
  }
  const auto bytes = std::make_shared<const std::vector<std::byte>>(data, data + part.bytes);
  const Time last = spread(put.rank, put.peer, base, part, bytes);
  if (part.bytes > options_.unit) ++torn_puts_;
  put.landed_at = std::max(put.landed_at, last);
}

void Memory::order(int rank, std::vector<Loose>& loose) {
  for (const Loose& l : loose) {
    Pair& p = pair(rank, l.to);
    if (l.put == 0) {
      p.covered = std::max(p.covered, l.at);
      continue;
    }
    Put& put = puts_[l.put - 1];
    if (put.landed_at == kNever) {
      put.number = ++p.issued;
      continue;
    }
    p.covered = std::max(p.covered, put.landed_at);
    free_.push_back(l.put);
  }
  loose.clear();
}

std::uint64_t& Memory::word(std::vector<Word>& words, std::uint64_t offset) {
  for (Word& w : words) {
    if (w.offset == offset) return w.value;
  }
  return words.emplace_back(Word{offset, 0}).value;
}

void Memory::store_flag(int rank, int peer, std::uint64_t offset, std::uint64_t value,
                        const std::function<Time(int)>& latency) {
  word(node(rank).words, offset) = value;
  const int first = peer < 0 ? 0 : peer;
  const int last = peer < 0 ? size() - 1 : peer;
  for (int p = first; p <= last; ++p) {
    if (p == rank) continue;
    Pair& to = pair(rank, p);
    Time at = queue_.now() + latency(p);
    if (options_.weak) at += random_.up_to(options_.delay);
    const bool loses = options_.loses_release || (options_.loses_signal && peer >= 0);
    if (!loses) at = std::max(at, to.covered);
    to.flags.push({offset, value, at, loses ? 0 : to.issued, false});
    resolve(rank, p);
  }
}

// Flags whose puts have landed now know when they appear: in the order of their stores.
void Memory::resolve(int from, int to) {
  Pair& p = pair(from, to);
  for (std::size_t i = 0; i < p.flags.size(); ++i) {
    Flag& flag = p.flags.at(i);
    if (flag.resolved) continue;
    if (flag.needs > p.landed) return;
    if (flag.needs != 0) flag.at = std::max(flag.at, p.covered);
    p.last = flag.at = std::max(flag.at, p.last);
    flag.resolved = true;
    tell_(to, flag.at);
  }
}

std::uint64_t Memory::load_flag(int rank, int peer, std::uint64_t offset) {
  if (rank == peer) return word(node(rank).words, offset);
  absorb(rank);
  Pair& p = pair(peer, rank);
  while (!p.flags.empty() && p.flags.front().resolved && p.flags.front().at <= queue_.now()) {
    word(p.words, p.flags.front().offset) = p.flags.front().value;
    p.flags.pop();
  }
  return word(p.words, offset);
}

bool Memory::has_all_of(int rank, int peer) {
  (void)load_flag(rank, peer, kStateWord);
  const Node& from = node(peer);
  return pair(peer, rank).flags.empty() && from.under_way == 0 && from.last_unit <= queue_.now();
}

}  // namespace ubep::sim
