#!/usr/bin/env bash
# `ubep bench --ablate`: rows are right in every step, the table and the JSON hold what they promise.
set -euo pipefail
ubep=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  echo "FAIL: $*" >&2
  exit 1
}

run() { # arguments: the JSON goes to $folder/json, the table to $folder/table
  "$ubep" bench --ablate --check --iters 5 --warmup 1 --json - "$@" \
    >"$folder/json" 2>"$folder/table" || fail "ubep bench --ablate $*: $(cat "$folder/table")"
}

run --ranks 3 --tokens 7,0,19 --hidden 100 --topk 5 --experts 17
grep -q '^check    passed: 0 rows differ' "$folder/table" || fail "$(cat "$folder/table")"
savings='saved us'
if grep -q 'UBEP_TRACE=OFF' "$folder/table"; then savings='no breakdown'; fi
for text in 'ablation expert_major' ' bsp ' ' + roles ' "$savings"; do
  grep -qF -- "$text" "$folder/table" || fail "no '$text' in $(cat "$folder/table")"
done
python3 - "$folder/json" <<'END' || fail "the JSON: $(cat "$folder/json")"
import json, sys
got = json.load(open(sys.argv[1]))
assert got["config"]["lanes"] == [1, 4, 8, 16], got["config"]
point = got["points"][0]
assert point["check"]["passed"] and point["paths"] == []
entries = point["ablation"]
steps = [e["step"] for e in entries if e["lanes"] == 1]
assert steps[:2] == ["bsp", "+ roles"], steps
assert [(e["lanes"], e["step"]) for e in entries] == [(n, s) for n in (1, 4, 8, 16) for s in steps]
for e in entries:
    assert e["path"] == ("bsp" if e["step"] == "bsp" else "push"), e["step"]
    assert sum(e["roles"].values()) == (0 if e["lanes"] == 1 else e["lanes"]), e["roles"]
    assert e["payload_copies"]["dispatch"] >= 1
    for operation in ("dispatch", "combine", "round_trip", "cycle"):
        times = e[operation]
        assert 0 < times["p25"] <= times["p50"] <= times["p75"] <= times["p99"], operation
        assert times["gain_over_step"] > 0 and times["gain_over_first"] > 0
        if operation == "cycle" or not e["traced"]:
            continue
        assert set(times["lane_us"]) == {"count", "send", "receive", "wait_flag", "wait_base",
                                         "barrier", "idle"}, operation
        assert all(us >= 0 for us in times["lane_us"].values())
        assert sum(times["lane_us"].values()) > 0 and 0 <= times["sync_share"] <= 1
        if e["step"] != "bsp":
            assert times["saved"]["verdict"] in ("no_gain", "waits", "work", "unexplained")
        assert ("saved" in times) == (e["step"] != "bsp"), operation
# bsp, and the steps that are compared with it, bring rows to a window and from there to their place.
copies = {e["step"]: e["payload_copies"]["dispatch"] for e in entries if e["lanes"] == 4}
assert copies["bsp"] == copies["+ roles"] == copies["+ schedule"] > copies["+ in place"], copies
END

# One number of lanes, roles by hand.
run --tokens 64 --hidden 512 --lanes 3 --roles 1:1:1 --activations in-place
grep -q ' + roles .* 1:1:1 ' "$folder/table" || fail "no roles in $(cat "$folder/table")"
"$ubep" bench --tokens 64 --hidden 512 --lanes 4 --roles 1:2:1 --path push --layout expert_major \
  --iters 3 >"$folder/table"
grep -q 'push:in-place@expert_major, roles 1:2:1' "$folder/table" || fail "$(cat "$folder/table")"
