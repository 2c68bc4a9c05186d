#!/usr/bin/env bash
# `ubep sim --compare --sweep`, --jobs, --trace, --sensitivity and `ubep sim tpot`: what they write
# has the documented keys and is the same again; options that do not go together are refused.
source "$(dirname "$0")/sim_common.bash"
small=(--pod "$pod" --ranks 9 --lanes 3 --hidden 1024 --experts 18 --topk 2)

"$ubep" sim "${small[@]}" --compare bsp,push,push:fence --sweep tokens=4,16 --seeds 2 --variants \
  --json "$folder/one.json" >"$folder/one" || fail "$(cat "$folder/one")"
python3 - "$folder/one.json" <<'END' || fail "the JSON: $(cat "$folder/one.json")"
import json, sys
got = json.load(open(sys.argv[1]))
assert got["schema"] == "ubep-sim/1"
assert [p["tokens"] for p in got["points"]] == [4, 16]
for point in got["points"]:
    assert [p["path"] for p in point["paths"]] == ["bsp", "push", "push:fence"]
    assert list(point["reduction_vs_bsp"]) == ["push", "push:fence"]
    r = point["reduction_vs_bsp"]["push"]
    assert set(r) == {"dispatch", "dispatch_low", "dispatch_high", "combine", "combine_low",
                      "combine_high"}
    bsp, push = point["paths"][:2]
    for key in ("dispatch", "combine"):
        assert abs(r[key] - (1 - push[key]["mean"] / bsp[key]["mean"])) < 1e-9, key
        assert r[key + "_low"] <= r[key] <= r[key + "_high"], key
    for path in point["paths"]:
        [variant] = path["variants"]
        assert variant["weight"] == 1 and variant["dispatch"] > 0 and variant["combine"] > 0
END

# One path alone gives the same figures, and so do two jobs.
timeless() { grep -v -e ' events in ' -e '"wall_s"' -e '"memory_gib"' "$1"; }
"$ubep" sim "${small[@]}" --compare bsp,push,push:fence --sweep tokens=4,16 --seeds 2 --variants \
  --jobs 2 --json "$folder/two.json" >"$folder/two"
for file in "" .json; do
  diff <(timeless "$folder/one$file") <(timeless "$folder/two$file") || fail "--jobs 2 differs"
done
"$ubep" sim "${small[@]}" --path push --protocol fence --tokens 16 --seeds 2 --json "$folder/path.json" \
  >/dev/null
python3 - "$folder/one.json" "$folder/path.json" <<'END' || fail "--path push differs"
import json, sys
compared, alone = (json.load(open(name)) for name in sys.argv[1:])
[path] = alone["points"][0]["paths"]
same = compared["points"][1]["paths"][2]
for key in ("dispatch", "combine", "effective_gbps", "sync_share", "dispatch_lanes"):
    assert path[key] == same[key], key
END

"$ubep" sim "${small[@]}" --tokens 8 --trace "$folder/trace.json" >"$folder/table"
grep -q '^trace of push, variant base, seed 1: [0-9]* slices$' "$folder/table" || fail "--trace"
python3 - "$folder/trace.json" <<'END' || fail "the trace"
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
assert len(named) == 9 * 4
for e in events:
    assert e["ph"] in "MX"
    if e["ph"] == "X":
        assert (e["pid"], e["tid"]) in named and e["ts"] >= 0 and e["dur"] >= 0, e
END

"$ubep" sim "${small[@]}" --tokens 8 --compare bsp,push --sensitivity "$folder/moves.svg" \
  --json "$folder/moves.json" >"$folder/table"
grep -q '^lane.barrier_ns ' "$folder/table" || fail "--sensitivity"
python3 - "$folder/moves.svg" "$folder/moves.json" <<'END' || fail "the chart"
import json, sys
import xml.etree.ElementTree as tree
assert tree.parse(sys.argv[1]).getroot().tag.endswith("svg")
got = json.load(open(sys.argv[2]))["sensitivity"]
assert len(got["metrics"]) == 6 == len(got["base"])
for row in got["parameters"]:
    assert len(row["less"]) == len(row["more"]) == 6, row
END

tpot=(tpot --pod "$pod" --ranks 8 --lanes 2 --tokens 4 --preset qwen3-30b --seeds 2)
"$ubep" sim "${tpot[@]}" --layer-us 100 --jitter-us 3 --json "$folder/tpot.json" >"$folder/table"
python3 - "$folder/tpot.json" <<'END' || fail "$(cat "$folder/tpot.json")"
import json, sys
got = json.load(open(sys.argv[1]))
assert got["schema"] == "ubep-sim-tpot/1" and got["config"]["layers"] == 48
[point] = got["points"]
bsp, push = point["paths"]
for path in (bsp, push):
    mean = path["tpot_ms"]["mean"]["mid"]
    assert abs(mean - 48 * (100 + path["exchange_us"]["mid"]) / 1000) < 1e-9
    assert path["tpot_ms"]["p99"]["mid"] > mean
    assert abs(path["tokens_per_s"] - 4 / mean * 1000) < 1e-6
less = point["push_less_than_bsp_ms"]["mean"]["mid"]
assert abs(less - (bsp["tpot_ms"]["mean"]["mid"] - push["tpot_ms"]["mean"]["mid"])) < 1e-9
END
"$ubep" sim "${tpot[@]}" >"$folder/table"
grep -q 'push less than bsp by ' "$folder/table" || fail "tpot: no difference"
if grep -q 'TPOT [0-9]' "$folder/table"; then fail "tpot: an absolute time: $(cat "$folder/table")"; fi
"$ubep" sim tpot --pod "$pod" --lanes 2 --preset glm-4.7 --seeds 1 --layer-us 50 --token-us 1 \
  --sweep ranks=6,8,tokens=2,4 --tpot-limit-ms 9 >"$folder/table"
grep -q '^160 experts on 6 ranks: 4 have 27 and 2 have 26$' "$folder/table" || fail "uneven experts"
grep -q '^within 9 ms, push: [0-9]* tokens/s a rank, ' "$folder/table" || fail "the best point"

refuses "--trace: '-' is not a file" "${small[@]}" --trace -
refuses "--sensitivity: '$folder' is not a file" "${small[@]}" --sensitivity "$folder"
refuses "two results would be written to '$folder/x'" "${small[@]}" --json "$folder/x" --trace "$folder/x"
refuses "--tokens is 0, a decode step" tpot --pod "$pod" --preset qwen3-30b --tokens 0
output=$("$ubep" sim tpot --pod "$pod" --preset qwen3-30b --layer-us nan 2>&1) && fail "--layer-us nan is taken"
[[ $output == "--layer-us: is nan, expected 0 to "* ]] || fail "--layer-us nan: $output"
"$ubep" sim tpot --pod nvl576 --lanes 2 --ranks 2 --tokens 1 --seeds 1 --preset qwen3-30b >"$folder/table"
grep -q '(a projection)' "$folder/table" || fail "tpot does not say what is a projection"
refuses "--path has no meaning with --compare" "${small[@]}" --compare bsp,push --path push
refuses "--tokens has no meaning with --sweep" "${small[@]}" --sweep tokens=4 --tokens 4
refuses "--sweep: 'ranks=4' is not tokens=" "${small[@]}" --sweep ranks=4
refuses "--compare: 'push' is there twice" "${small[@]}" --compare push,push
refuses "path pull has no protocol" "${small[@]}" --compare pull:fence
refuses "--protocol has no meaning with --compare" "${small[@]}" --compare bsp,push:dc --protocol sp
refuses "--roles has no meaning with path bsp" "${small[@]}" --path bsp --roles 1:1:1
refuses "protocol is fence, path pull has none" "${small[@]}" --path pull --protocol fence
refuses "layout is expert_major, path read needs rank_major" "${small[@]}" --compare bsp,read
refuses "--variant: 'slow' is not one of base" "${small[@]}" --variant slow
refuses "--trace is of one point, --sweep has 2" "${small[@]}" --sweep tokens=4,8 --trace "$folder/t"
refuses "--sensitivity is of one point" "${small[@]}" --sweep tokens=4,8 --sensitivity "$folder/t"
refuses "--compare has no meaning with --ablate" "${small[@]}" --ablate --compare bsp,push
refuses "/nowhere/x.json" "${small[@]}" --trace /nowhere/x.json
refuses "--pod goes behind tpot" --pod "$pod" tpot --preset qwen3-30b
refuses "--pod is required" tpot --preset qwen3-30b
refuses "unknown model qwen3-30b-decode" tpot --pod "$pod" --preset qwen3-30b-decode
refuses "glm-4.7 has 160 experts: 40 of 200 ranks would have none; take at most 160 ranks" \
  tpot --pod "$pod" --preset glm-4.7 --ranks 200
refuses "--tpot-limit-ms needs --layer-us" "${tpot[@]}" --tpot-limit-ms 50
refuses "--micro-batches needs --layer-us" "${tpot[@]}" --micro-batches 2
refuses "5 tokens cannot be 2 micro-batches" tpot --pod "$pod" --preset qwen3-30b --ranks 4 \
  --tokens 5 --layer-us 9 --micro-batches 2
refuses "--token-us needs --layer-us" "${tpot[@]}" --token-us 1
refuses "--sweep: 'lanes=4' is not of ranks=" tpot --pod "$pod" --preset qwen3-30b --sweep lanes=4
refuses "--ranks has no meaning with --sweep ranks=" "${tpot[@]}" --sweep ranks=4
