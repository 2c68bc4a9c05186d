// What a fabric offers: one segment per rank that peers read, words that announce its contents, and
// the state of every peer. A fabric sees bytes; it knows nothing of tokens, records or operations.
//
// acquire/release  a peer's bytes for reading. Mapped fabrics answer at once; others start a fetch
//                  and return nullptr until it has arrived. Own bytes are acquired likewise.
//                  Acquiring again names the same fetch; release ends it.
// abandon          lets go of everything acquired of, or being fetched from, a range: nobody waits
//                  for it any more, and a later acquire must see later bytes.
// prepare          own bytes that will be written soon, from the start of an area: resident now.
// claim/commit     own bytes for writing, always at the same address; after commit and the next
//                  flag peers may acquire them. commit says how they were stored: far ones need an
//                  order() of the same lane before the flag.
// replicate        sends committed own bytes to one peer ahead of the next flag: acquiring exactly
//                  one of these ranges then takes that peer no way there and back. Nothing where
//                  memory is mapped.
// inbox            own bytes that peers put rows into; null when nobody pushes.
// inbox_of         bytes of a peer's inbox, or the own one, for reading; of a peer whose memory is
//                  mapped.
// claim_at/commit_at  bytes of a peer's inbox for writing (any lane, each byte once); after
//                  commit_at and the next own flag that peer finds them in its inbox.
// incoming         bytes of the own inbox that `source` may still be putting: the range of one put.
//                  Null: nothing of it is here. Where rows do not move, the fabric must know;
//                  others may always give the address, and the bytes tell.
// taken            they were taken out; a later incoming() is about the next put to this range.
// flushed          whether that peer has acknowledged all that was put into its inbox and ordered.
// load_flag        acquires: everything the writer of that value stored before it is visible.
// store_flag       publishes: everything stored (and committed) before.
// signal           a flag that only one peer looks at; publishes what was put into its inbox.
// order            an ordering by name, called by each lane that stored data.
// post             sends what was stored, put or replicated until now, where that does not go by
//                  itself: called at the end of each call of the engine, by any lane.
// progress         moves transfers on; returns the work done. Never waits.
// work             tells of work on own memory that no other call tells of; virtual time in a
//                  simulator.
// peer_state       looks once at a peer; the cost of a system call at most.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/fabric_facts.hpp"

namespace ubep {

template <class F>
concept Fabric =
    requires(F& fabric, const F& facts_of, int rank, Range range, std::uint64_t offset,
             std::uint64_t value, Store store, Ordering ordering, Work work, PeerState state) {
      { facts_of.facts() } -> std::convertible_to<const FabricFacts&>;
      { facts_of.rank() } -> std::same_as<int>;
      { facts_of.size() } -> std::same_as<int>;
      { fabric.acquire(rank, range) } -> std::same_as<const std::byte*>;
      { fabric.release(rank, range) } -> std::same_as<void>;
      { fabric.abandon(rank, range) } -> std::same_as<void>;
      { fabric.prepare(range) } -> std::same_as<void>;
      { fabric.claim(range) } -> std::same_as<std::byte*>;
      { fabric.commit(range, store) } -> std::same_as<void>;
      { fabric.replicate(rank, std::span<const Range>()) } -> std::same_as<void>;
      { fabric.inbox(range) } -> std::same_as<std::byte*>;
      { fabric.inbox_of(rank, range) } -> std::same_as<const std::byte*>;
      { fabric.claim_at(rank, range) } -> std::same_as<std::byte*>;
      { fabric.commit_at(rank, range, store) } -> std::same_as<void>;
      { fabric.incoming(rank, range) } -> std::same_as<std::byte*>;
      { fabric.taken(rank, range) } -> std::same_as<void>;
      { fabric.flushed(rank) } -> std::same_as<bool>;
      { fabric.load_flag(rank, offset) } -> std::same_as<std::uint64_t>;
      { fabric.store_flag(offset, value) } -> std::same_as<void>;
      { fabric.signal(rank, offset, value) } -> std::same_as<void>;
      { fabric.order(ordering) } -> std::same_as<void>;
      { fabric.post() } -> std::same_as<void>;
      { fabric.progress() } -> std::same_as<int>;
      { fabric.work(work) } -> std::same_as<void>;
      { fabric.peer_state(rank) } -> std::same_as<PeerState>;
      { fabric.set_state(state) } -> std::same_as<void>;
    };

}  // namespace ubep
