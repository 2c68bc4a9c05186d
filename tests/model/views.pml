/* Changes of view, as intended for update_membership(); the library does not have it yet. Explored to
 * the end by tests/model/explore.sh.
 *
 * R ranks; the first MEMBERS are live from the start, the others may join at any time. All members
 * start the same operations in the same order: dispatch, combine, change of view; the first one to
 * come chooses which. OPS operations, one slot, at most DEATHS deaths, at any point.
 *
 * A change from view v to v + 1 at rank r, which holds no lease:
 * 1. asks = who is seen to be joining; then close[(v + 1) mod 2] = v + 1.
 * 2. For each member q of v: wait for its close word, or for its loss; then look once more.
 *    The new members are those whose close word is set, and all that these ask for. Words of the lost
 *    are frozen, so all find the same without a message, and nobody leads.
 * 3. record[(v + 1) mod 2] = members, seq, e; and then view = v + 1. Only joiners look at that word, and
 *    any member's will do. Operations go on at once; their op lines carry v + 1.
 * A joiner looks for a view word whose record names it, and looks at the word once more after it has
 * copied the record. It takes seq and e from the record, stores e in its words, and then its own view
 * word. Until then its missing credit holds the others back.
 * Two close words: the one for v + 2 may be stored while a slow member still looks for that of v + 1.
 * Two records: that of v + 1 is written while view still is v.
 *
 * As in protocol.pml every memory is the epoch of what lies there, steps are sequentially consistent,
 * and a rank knows at once what a look would show. A rank that died is never followed by another one
 * at its place.
 *
 * MUTATION 1..11 plants a fault that must be found; 0 = none.
 */
#ifndef R
#define R 3
#endif
#ifndef MEMBERS
#define MEMBERS 2
#endif
#ifndef OPS
#define OPS 5
#endif
#ifndef DEATHS
#define DEATHS (R - 1)
#endif
#ifndef MUTATION
#define MUTATION 0
#endif

/* Words. */
byte pub[R], out[R], done[R], close[R * 2], view[R];
bool joining[R];
/* Memory: x, y; the view in the op lines of dispatch and combine; what close and view announce. */
byte x[R], y[R], view_of_dispatch[R], view_of_combine[R];
byte asks[R * 2], members[R * 2], seq_then[R * 2], e_then[R * 2];

bool lost[R];
byte deaths = 0;
#if MUTATION == 7 /* rank 0 takes a live rank for dead: masks it without ending it */
bool slandered = false;
#define LOST(q) (lost[q] || slandered && r == 0 && q == 1)
#else
#define LOST(q) lost[q]
#endif

/* What all ranks' callers have agreed on; and the members of each view, to compare. */
#define DISPATCH 1
#define COMBINE 2
#define CHANGE 3
byte kind[OPS + 1], members_of[OPS + 2];

mtype = {
  Idle, Started, Open, Combining, Combined, Closing, Closed, Adopted, Joining, Looked, Copied, Joined
};

#if R == 2
#define ALL(f) (f(0) && f(1))
#define SUM(f) (f(0) + f(1))
#define UNION(f) (f(0) | f(1))
#define EACH(f) f(0) f(1)
#elif R == 3
#define ALL(f) (f(0) && f(1) && f(2))
#define SUM(f) (f(0) + f(1) + f(2))
#define UNION(f) (f(0) | f(1) | f(2))
#define EACH(f) f(0) f(1) f(2)
#else
#define ALL(f) (f(0) && f(1) && f(2) && f(3))
#define SUM(f) (f(0) + f(1) + f(2) + f(3))
#define UNION(f) (f(0) | f(1) | f(2) | f(3))
#define EACH(f) f(0) f(1) f(2) f(3)
#endif

#define OTHER(q) (q != r && (mine >> q & 1))
#define CREDIT(q) (!OTHER(q) || LOST(q) || done[q] >= e)
#define SEEN(q) (!OTHER(q) || LOST(q) || pub[q] >= e)
#define SUMMED(q) (!OTHER(q) || LOST(q) || out[q] >= e)
#define ROWS_RIGHT(q)                                                                           \
  (!OTHER(q) || pub[q] < e || pub[q] == e && x[q] == e && view_of_dispatch[q] == v)
#define OUTPUTS_RIGHT(q)                                                                        \
  (!OTHER(q) || out[q] < e || out[q] == e && y[q] == e && view_of_combine[q] == v)

#if MUTATION == 5 /* one close word */
#define CLOSE(q, number) close[(q) * 2]
#define ASKS(q, number) asks[(q) * 2]
#else
#define CLOSE(q, number) close[(q) * 2 + (number) % 2]
#define ASKS(q, number) asks[(q) * 2 + (number) % 2]
#endif
#define JOINER(q) (q >= MEMBERS && joining[q] && !lost[q] && !(mine >> q & 1) -> 1 << q : 0)
#if MUTATION == 3 /* a word is not looked at again after the verdict */
#define CLOSED(q) (!OTHER(q) || CLOSE(q, v + 1) > v && !(gone >> q & 1) || LOST(q))
#define TOOK_PART(q) ((mine >> q & 1) && CLOSE(q, v + 1) > v && !(gone >> q & 1))
#else
#define CLOSED(q) (!OTHER(q) || CLOSE(q, v + 1) > v || LOST(q))
#if MUTATION == 7
#define TOOK_PART(q) ((mine >> q & 1) && CLOSE(q, v + 1) > v && (lost[q] || !LOST(q)))
#elif MUTATION == 9 /* who died after closing is left out */
#define TOOK_PART(q) ((mine >> q & 1) && CLOSE(q, v + 1) > v && !lost[q])
#else
#define TOOK_PART(q) ((mine >> q & 1) && CLOSE(q, v + 1) > v)
#endif
#endif
#define CLOSE_RIGHT(q) (!OTHER(q) || CLOSE(q, v + 1) <= v + 1)
#define MEMBER(q) (TOOK_PART(q) -> 1 << q : 0)
#if MUTATION == 4 /* joiners are taken from what the rank itself sees */
#define NEW_MEMBERS (SUM(MEMBER) | SUM(JOINER))
#else
#define ASKED(q) (TOOK_PART(q) -> ASKS(q, v + 1) : 0)
#define NEW_MEMBERS (SUM(MEMBER) | UNION(ASKED))
#endif
#if MUTATION == 2 /* leases may be open */
#define MAY_CHANGE true
#else
#define MAY_CHANGE (!leased)
#endif
#if MUTATION == 6 /* does not wait for the others */
#define MAY_ADOPT true
#else
#define MAY_ADOPT ALL(CLOSED)
#endif
#if MUTATION == 8 /* close is stored before what it announces */
#define CLOSE_FIRST STORE(CLOSE(r, v + 1), v + 1)
#define CLOSE_SECOND ASKS(r, v + 1) = SUM(JOINER)
#else
#define CLOSE_FIRST ASKS(r, v + 1) = SUM(JOINER)
#define CLOSE_SECOND STORE(CLOSE(r, v + 1), v + 1)
#endif
#if MUTATION == 10 /* one record */
#define RECORD(field, q, number) field[(q) * 2]
#else
#define RECORD(field, q, number) field[(q) * 2 + (number) % 2]
#endif
#if MUTATION == 11 /* a joiner does not look at the number once more */
#define UNCHANGED(p) true
#else
#define UNCHANGED(p) (view[p] == v)
#endif
#if MUTATION == 1 /* a joiner's words start at 0 */
#define FIRST_WORD 0
#else
#define FIRST_WORD e
#endif

#define STORE(word, value) assert(value > word); word = value
#define NEXT(what) (seq < OPS && state == Idle && (kind[seq + 1] == 0 || kind[seq + 1] == what))
#define COUNT(what) seq++; kind[seq] = what

/* A joiner: number, record, and number once more, of any member. */
#define JOIN(p)                                                                                 \
  :: d_step { p != r && state == Joining && view[p] > 0 -> v = view[p]; from = p; state = Looked } \
  :: d_step { state == Looked && from == p ->                                                   \
     mine = RECORD(members, p, v); seq = RECORD(seq_then, p, v); e = RECORD(e_then, p, v);      \
     state = Copied }                                                                           \
  :: d_step { state == Copied && from == p && (mine >> r & 1) && UNCHANGED(p) ->                \
     from = 0; pub[r] = FIRST_WORD; out[r] = FIRST_WORD; done[r] = FIRST_WORD; state = Joined } \
  :: d_step { state == Copied && from == p && !((mine >> r & 1) && UNCHANGED(p)) ->             \
     from = 0; v = 0; mine = 0; seq = 0; e = 0; state = Joining }
#define OVER(p) (p == r || lost[p] || p >= MEMBERS && view[p] == 0)

#define LOOK(q)                                                                                 \
  :: d_step { state == Closed && OTHER(q) && !(gone >> q & 1) && CLOSE(q, v + 1) <= v ->        \
     gone = gone | 1 << q }                                                                     \
  :: d_step { state == Closed && OTHER(q) && (gone >> q & 1) && !lost[q] ->                     \
     gone = gone & ~(1 << q) }

inline end_rank() {
  d_step {
    lost[r] = true; state = Idle; seq = 0; e = 0; v = 0; mine = 0; leased = false; gone = 0;
    from = 0
  }
}

#define DIE atomic { deaths < DEATHS -> deaths++; end_rank(); goto ended }

inline adopt() {
  assert(members_of[v] == 0 || members_of[v] == mine);
  members_of[v] = mine;
  RECORD(members, r, v) = mine; RECORD(seq_then, r, v) = seq; RECORD(e_then, r, v) = e
}

proctype Rank(byte r) {
  byte seq, e, v, mine, gone, from;
  bool leased;
  mtype state = Idle;
  if
  :: d_step { r < MEMBERS -> v = 1; mine = (1 << MEMBERS) - 1; view[r] = 1;
     RECORD(members, r, v) = mine }
  :: d_step { r >= MEMBERS -> state = Joining; joining[r] = true }
  fi;
end_joining: /* none of the later changes may come */
  do
  :: d_step { state == Joined -> adopt(); STORE(view[r], v); state = Idle }
  :: state == Idle -> break
  EACH(JOIN)
  :: atomic { state == Joining && ALL(OVER) -> end_rank(); goto ended } /* none left */
  :: DIE
  od;
  do
  :: d_step { NEXT(DISPATCH) && !leased && ALL(CREDIT) ->
     COUNT(DISPATCH); e++; leased = true; x[r] = e; view_of_dispatch[r] = v; state = Started }
  :: d_step { state == Started -> STORE(pub[r], e); state = Open }
  :: d_step { state == Open && ALL(SEEN) -> assert(ALL(ROWS_RIGHT)); state = Idle }
  :: d_step { NEXT(COMBINE) && leased ->
     assert(ALL(ROWS_RIGHT) || MUTATION == 2); COUNT(COMBINE); y[r] = e; view_of_combine[r] = v;
     state = Combining }
  :: d_step { state == Combining -> STORE(out[r], e); state = Combined }
  :: d_step { state == Combined && ALL(SUMMED) ->
     assert(ALL(OUTPUTS_RIGHT)); STORE(done[r], e); leased = false; state = Idle }
  :: d_step { NEXT(CHANGE) && MAY_CHANGE -> COUNT(CHANGE); CLOSE_FIRST; state = Closing }
  :: d_step { state == Closing -> CLOSE_SECOND; state = Closed }
  :: d_step { state == Closed && MAY_ADOPT ->
     assert(ALL(CLOSE_RIGHT)); mine = NEW_MEMBERS; v++; adopt(); gone = 0;
     state = Adopted }
  :: d_step { state == Adopted -> STORE(view[r], v); state = Idle }
#if MUTATION == 3
  EACH(LOOK)
#endif
#if MUTATION == 7
  :: r == 0 && !slandered -> slandered = true
#endif
  :: DIE
  :: atomic { state == Idle && seq == OPS -> end_rank(); goto ended } /* leaves */
  od;
ended:
  skip
}

init {
  atomic {
    byte r;
    for (r : 0 .. R - 1) { run Rank(r) }
    r = 0
  }
}
