"""The faults that scripts/mutate plants: (name, file, text, text instead, arguments of ubep_fuzz)."""

ENGINE = "src/engine/engine_impl.hpp"
AGREE = "src/engine/agree_impl.hpp"
DISPATCH = "src/engine/dispatch_impl.hpp"
PLACE = "src/engine/place_impl.hpp"
PUSH = "src/engine/push_impl.hpp"
ROLES = "src/engine/roles_impl.hpp"
SLICES = "src/engine/slices_impl.hpp"
COMBINE = "src/engine/combine_impl.hpp"
WIRE = "src/engine/wire_impl.hpp"

MUTATIONS = [
    # Orderings.
    ("store_flag without release", None, "", "", ["--loses-release"]),
    ("no fence after streamed tokens", DISPATCH,
     "  fabric_.order(Ordering::before_flag);  // orders: this lane's streamed rows before the tile's end\n",
     "", []),
    ("no fence after streamed entries of the record", DISPATCH,
     "  fabric_.order(Ordering::before_flag);  // orders: streamed entries before pub\n", "", []),
    ("no fence after pushed rows", PUSH,
     "  fabric_.order(Ordering::before_flag);  // orders: this lane's streamed rows before the tile's end\n",
     "", []),
    ("no fence after streamed outputs", COMBINE,
     "  fabric_.order(Ordering::before_flag);  // orders: this lane's streamed rows before the tile's end\n",
     "", []),
    ("pub before the tokens are stored", DISPATCH,
     "  const bool stored = pushes(*op.handle->routed) || op.send.idle();",
     "  const bool stored = true;", []),
    ("out before the outputs are stored", COMBINE,
     "  if (op.announced || !op.send.idle()) return 0;", "  if (op.announced) return 0;", []),
    ("op line's number before its fields", AGREE,
     """  fabric_.commit(range, Store::near);
  if (!fabric_.facts().mapped) replicate_line(range, record);
  // publishes: the rest of the op line, to agree_on_op() of every peer; without the order a peer
  // would compare with the line of 4N operations ago.
  fabric_.store_flag(range.offset, line.seq);""",
     "  fabric_.store_flag(range.offset, line.seq);\n  fabric_.commit(range, Store::near);\n"
     "  if (!fabric_.facts().mapped) replicate_line(range, record);", []),
    ("sent after the first tile of rows", PUSH,
     "subtract_acq_rel(rows) != 0)",
     "subtract_acq_rel(rows) + rows != op.handle->routed->outgoing[static_cast<std::size_t>("
     "owner)].num_rows())", []),
    ("record read before its flag", DISPATCH,
     "  if (stage == Op::kOpLine && agree_on_op(op, q, quietly)) stage = Op::kAnnouncement;",
     "  if (stage == Op::kOpLine && agree_on_op(op, q, quietly)) stage = Op::kRecordHead;", []),
    # Epochs, slots, credits.
    ("epoch of a word not compared", AGREE,
     "  if (seen <= word.value) return seen == word.value;",
     "  if (seen <= word.value) return seen != 0;", []),
    ("credit ignored", DISPATCH, "    if (seen >= status.expected) continue;", "    continue;", []),
    ("credit of one epoch too early", DISPATCH,
     "  status.expected = is_first ? first_ + 1 : epoch - slots_.size();",
     "  status.expected = is_first ? first_ + 1 : epoch - slots_.size() - 1;", []),
    ("credit asked for another slot than is taken", DISPATCH,
     "  h.slot = static_cast<int>(h.epoch % slots_.size());",
     "  h.slot = static_cast<int>((h.epoch + 1) % slots_.size());", []),
    ("credit given before the sums are read", COMBINE,
     "  if (op.sent && op.placed && op.waiting.empty() && op.receive.idle()) {",
     "  if (op.sent && op.placed && op.waiting.empty()) {", []),
    # Places.
    ("base of a pushing source off by one", "src/plan/push_plan.cpp",
     "static_cast<std::uint32_t>(begin + before[g]);",
     "static_cast<std::uint32_t>(begin + before[g] + 1);", []),
    ("window of another source", PUSH,
     "const std::uint64_t window = window_rows(routed, owner) * static_cast<std::uint64_t>(rank_);",
     "const std::uint64_t window = window_rows(routed, owner) * static_cast<std::uint64_t>(owner);",
     []),
    ("base table announced before it is written", PLACE,
     "  fabric_.commit(all, Store::near);\n  if (!config_.push || sums_bases()) return;",
     "  if (!config_.push || sums_bases()) return;", []),
    # Ends of leases.
    ("released handle gives no credit", ENGINE,
     "  fabric_.store_flag(own().done(handle.slot), handle.epoch);\n  end_lease",
     "  end_lease", []),
    ("released handle does not say so", ENGINE,
     "    fabric_.store_flag(own().out(handle.slot), out_word + 1);", "", []),
    ("release drops rows that were not pushed yet", ENGINE,
     "    if (!op->unplaced.empty() && handle.kind == OpKind::dispatch) leave_rows(*op);\n", "", []),
    ("release drops own rows that were not stored yet", ENGINE,
     "    (void)run_send_tiles(*op);\n    if (handle.kind", "    if (handle.kind", []),
    ("no second look at `sent` after a release was seen", PUSH,
     """    seen = fabric_.load_flag(q, word_offset);
    if (seen < op.line.epoch) return released""", "    if (seen < op.line.epoch) return released",
     []),
    ("fetch goes on after its operation", ENGINE,
     "  for (const Range& range : l.slot_areas(op.handle->slot)) fabric_.abandon(q, range);\n", "", []),
    # Death and failure.
    ("credit of the dead is waited for", DISPATCH,
     "    if (p == rank_ || lost_.contains(p)) continue;", "    if (p == rank_) continue;", []),
    ("a dead rank's word is not looked at", AGREE,
     "  if (!quietly && seen < word.value && lost_.contains(q)) give_up_on(op, q);",
     "  if (!quietly && lost_.contains(q)) give_up_on(op, q);", []),
    ("a loss is reported twice", AGREE, "  reported_.insert(q);\n", "", []),
    ("the rows of the dead keep old bytes", PLACE, "  op.unsent.for_each([&](int q) { zero_rows(op, q); });\n",
     "", []),
    ("a plan is replaced under a lane", DISPATCH,
     "      !op.cached || op.absent.empty() || (op.send.idle() && op.receive.idle());",
     "      true;", []),
    ("failure is told while lanes store into inboxes", ENGINE,
     "  if (failed_.ok() || told_failure_ || !order_.empty()) return;",
     "  if (failed_.ok() || told_failure_) return;", []),
    ("the record is fetched twice: checked, then used", DISPATCH,
     "  if (found.field == nullptr) return true;\n",
     "  if (found.field == nullptr) {\n"
     "    const std::byte* again = fabric_.acquire(q, range);\n"
     "    if (again == nullptr) return false;\n"
     "    if (!entries.empty()) std::memcpy(entries.data(), again, range.bytes);\n"
     "    fabric_.release(q, range);\n"
     "    return true;\n  }\n", []),
    ("the record is not checked", DISPATCH,
     "  if (found.field == nullptr) return true;\n", "  return true;\n", []),
    ("an operation's fields are not compared", AGREE,
     "    found = compare(op.line, theirs);", "", []),
    # Lanes with roles.
    ("a slice leaves its last row out", SLICES,
     "  op.send.add(kAllOwners, rows, static_cast<std::uint32_t>(lanes));",
     "  op.send.add(kAllOwners, rows - (rows == 0 ? 0 : 1), static_cast<std::uint32_t>(lanes));", []),
    ("a row is in two slices", SLICES,
     "  RunCursor cursor({slice.next, slice.end, find_place(op.schedule.begin, slice.next)});\n"
     "  while (!cursor.done()) {\n    const RowRun to = cursor.next(op.schedule);\n    if (!op.is",
     "  RunCursor cursor({slice.next == 0 ? 0 : slice.next - 1, slice.end,\n"
     "                    find_place(op.schedule.begin, slice.next == 0 ? 0 : slice.next - 1)});\n"
     "  while (!cursor.done()) {\n    const RowRun to = cursor.next(op.schedule);\n    if (!op.is",
     []),
    ("slices before all bases are known", PUSH,
     "    if (changed && op.unplaced.empty() && slices(*op.handle->routed)) add_slices(op);",
     "    if (changed && op.send.idle() && slices(*op.handle->routed)) add_slices(op);", []),
    ("a peer is heard before its record is read", ROLES,
     "    if (!advance_source(op, q, true)) continue;", "    (void)advance_source(op, q, true);", []),
    ("shares are taken back only while there is a reason", ROLES,
     "  op.recalled = op.recalled || op.doubts", "  op.recalled = op.doubts", []),
    ("a lane in a share judges the lost", AGREE,
     "  if (!quietly && seen < word.value && lost_", "  if (seen < word.value && lost_", []),
    ("outputs come back one place too far", COMBINE,
     "      const std::uint64_t first = h.routed->first_entry[tile.peer];",
     "      const std::uint64_t first = h.routed->first_entry[tile.peer] + 1;", []),
    # Protocols of pushed rows.
    ("blocks with flags on memory that tears them", "src/protocol/token_flag.hpp",
     "    if (facts.atomic_bytes >= block || facts.ordered_stores) return \"\";", "    return \"\";\n",
     ["--protocol", "tff-512", "--no-fates"]),
    ("the half of a block with its flag is put before the other", WIRE,
     "    fabric_.commit_at(owner, range, Store::near);\n    const bool ends_batch",
     "    fabric_.commit_at(owner, {range.offset + 64, range.bytes - 64}, Store::near);\n"
     "    fabric_.commit_at(owner, {range.offset, 64}, Store::near);\n    const bool ends_batch",
     ["--protocol", "tff-128"]),
    ("a flag's epoch is not compared", "src/protocol/token_flag.hpp",
     "    return last == epoch;", "    return last != 0;", ["--protocol", "tff-128"]),
    ("a narrow tag is the same in all epochs", "src/protocol/row_protocol.hpp",
     "epoch % 0xffff'ffff + 1", "epoch % 1 + 1", ["--protocol", "tff-16"]),
    ("a batch is taken without its checksum", WIRE,
     "    if (moves && protocol_.checksum_word(wire, sum) != told) return false;\n", "",
     ["--protocol", "dc"]),
    ("a window is not armed again", WIRE,
     "      protocol_.arm(h.slot, fabric_.inbox(place(row)), place(row).bytes);\n", "",
     ["--protocol", "sp"]),
    ("a window is armed before all of its rows are here", WIRE,
     "    if (slot.dirty && moves) protocol_", "    if (false && moves) protocol_",
     ["--protocol", "sp"]),
    ("windows of a dispatch that was given up count as armed", ENGINE,
     "      slot_of(handle).dirty = true;\n",
     "      if (arms_) fabric_.store_flag(own().armed(handle.slot), handle.epoch + 1);\n",
     ["--protocol", "sp"]),
    ("rows that hold the sentinel are not marked", WIRE,
     "    if (protocol_.collides(wire, h.x.row(t))) set(t / 64, t % 64);\n", "",
     ["--protocol", "sp"]),
    ("marked rows do not wait for their word", WIRE,
     "    if (wire.announced && fabric_.load_flag(q, layout(q).sent(h.slot, rank_)) < h.epoch) {",
     "    if (false) {", ["--protocol", "sp"]),
    ("rows of the lost are awaited", DISPATCH,
     "  if (failed_.ok() && op.decoding.meets(lost_)) done += look_at_lost_sources(op);\n", "",
     ["--protocol", "tff-16"]),
    # Sums.
    ("sums skip a row whose owner is late", COMBINE,
     "    if (!op.ready.load_acquire(ref.rank)) return false;",
     "    if (!op.ready.load_acquire(ref.rank)) continue;", []),
    ("rows of the lost are summed", COMBINE,
     "    if (op.lost.load_acquire(ref.rank)) {", "    if (op.lost.load_acquire(ref.rank) && false) {",
     []),
]
