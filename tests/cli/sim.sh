#!/usr/bin/env bash
# `ubep sim`: what it tells is right and has the documented keys; input errors give exit code 2 and
# one line that names the value, or the file and its line.
source "$(dirname "$0")/sim_common.bash"

runs() { # arguments: prints the JSON
  "$ubep" sim --pod "$pod" --json - "$@" 2>"$folder/table" || fail "ubep sim $*: $(cat "$folder/table")"
}

json=$(runs --ranks 8 --tokens 16 --payload)
python3 - "$json" <<'END' || fail "the JSON: $json"
import json, sys
got = json.loads(sys.argv[1])
assert set(got) == {"schema", "pod", "config", "points", "wall_s", "events", "memory_gib"}, sorted(got)
assert got["schema"] == "ubep-sim/1" and got["pod"] == "generic"
config = {"ranks": 8, "lanes": 8, "tokens": [16], "hidden": 7168, "topk": 8, "experts": 256,
          "dtype": "bf16", "layout": "expert_major", "routing": "uniform", "roles": [0, 0, 0],
          "payload": True, "seeds": [1], "paths": ["push"],
          "projection": False, "quant": "none", "background_gb_s": 0, "degraded": [],
          "variants": [{"variant": "base", "weight": 1.0}]}
assert got["config"] == config, got["config"]
[point] = got["points"]
assert set(point) == {"tokens", "paths", "reduction_vs_bsp", "null", "cannot_rank"}, sorted(point)
assert point["tokens"] == 16 and point["reduction_vs_bsp"] == {} and point["cannot_rank"] == []
assert 0 < point["null"]["latency"] < point["null"]["dispatch"] == point["null"]["combine"]
[path] = point["paths"]
assert set(path) == {"path", "variant", "dispatch", "combine", "effective_gbps", "sync_share",
    "protocol", "roles", "bytes_sent", "dispatched_bytes", "dispatch_lanes", "combine_lanes", "check"}, sorted(path)
assert path["path"] == "push" and path["variant"] == "base" and path["protocol"] == "auto"
assert path["check"] == {"wrong_rows": 0} and path["dispatched_bytes"] == 14336
for key in ("dispatch", "combine"):
    t = path[key]
    assert set(t) == {"mean", "p50", "p99", "max_lane", "low", "high"}, key
    assert point["null"][key] < t["p50"] <= t["p99"], key
    assert t["low"] == t["high"] and abs(t["mean"] - t["low"]) < 1e-9, key
# Rows go to other ranks and come back: 16 tokens of 8 ranks, for 7 of 8 choices.
assert path["bytes_sent"] > 2 * 8 * 16 * 8 * 7 / 8 * 7168 * 2 * 0.9, "bytes_sent"
assert 0 < path["effective_gbps"] < 100 and 0 < path["sync_share"] < 1
assert got["events"] > 0 and got["wall_s"] > 0 and got["memory_gib"] > 0
END
grep -q 'check: 0 of 128 combined rows are wrong' "$folder/table" || fail "$(cat "$folder/table")"

# All but what the machine tells is the same again, and without the payload.
virtual() {
  grep -v -e '"wall_s"' -e '"memory_gib"' -e '"check"' -e '"wrong_rows"' -e '"payload"'
}
again=$(runs --ranks 8 --tokens 16)
if [ "$(virtual <<<"$json" | tr -d ' {},\n')" != "$(virtual <<<"$again" | tr -d ' {},\n')" ]; then
  fail "the payload changes $again"
fi

for protocol in put-with-signal tff-16 tff-128 tff-512 dc dc:3 sp fence; do
  runs --ranks 5 --tokens 6 --hidden 100 --lanes 2 --protocol "$protocol" --payload \
    | grep -q '"wrong_rows": 0' || fail "$protocol"
done

# By name, the pod is the one of the file.
named=$("$ubep" sim --pod generic --ranks 8 --tokens 16 --json - 2>/dev/null)
[ "$(virtual <<<"$named")" = "$(virtual <<<"$again")" ] || fail "--pod generic: $named"

# Quantised rows are smaller, and so is what is sent.
json=$(runs --ranks 8 --tokens 16 --quant int8 --protocol tff-512)
python3 - "$json" "$again" <<'END' || fail "--quant: $json"
import json, sys
small, large = (json.loads(text) for text in sys.argv[1:])
assert small["config"]["quant"] == "int8"
small, large = (got["points"][0]["paths"][0] for got in (small, large))
assert small["dispatched_bytes"] == 7212 and small["protocol"] == "tff-512"
assert 0.7 * large["bytes_sent"] < small["bytes_sent"] < 0.85 * large["bytes_sent"]
END
grep -q ', quant int8' "$folder/table" || fail "$(cat "$folder/table")"
runs --ranks 8 --tokens 16 --record-bytes 999 --path bsp | grep -q '"dispatched_bytes": 999' \
  || fail "--record-bytes"

# Less of a link, a rank or all ports: it takes longer, and the result says so.
for items in "--degrade link:0-1:0.05" "--degrade die:3:0.1" "--background 90"; do
  # shellcheck disable=SC2086 # two words
  slow=$(runs --ranks 8 --tokens 16 $items)
  python3 - "$slow" "$again" "$items" <<'END' || fail "$items: $slow"
import json, sys
slow, plain = (json.loads(text) for text in sys.argv[1:3])
times = [sum(got["points"][0]["paths"][0][key]["p99"] for key in ("dispatch", "combine"))
         for got in (slow, plain)]
assert times[0] > 1.1 * times[1]
slow = slow["config"]
option, value = sys.argv[3].split()
assert slow["degraded"] == ([value] if option == "--degrade" else [])
assert slow["background_gb_s"] == (90 if option == "--background" else 0)
END
  grep -q ", ${items#--}" "$folder/table" || [[ $items == --degrade* ]] \
    || fail "$(cat "$folder/table")"
done

for items in "read rank_major" "pull rank_major" "pull expert_major" "push rank_major" \
  "bsp expert_major" "allgather rank_major"; do
  read -r path layout <<<"$items"
  runs --ranks 9 --tokens 5 --hidden 64 --lanes 2 --path "$path" --layout "$layout" --payload \
    | grep -q '"wrong_rows": 0' || fail "$items"
done

"$ubep" sim --pod "$pod" --ranks 2 --tokens 1 --json "$folder/out.json" >/dev/null
grep -q '"ranks": 2' "$folder/out.json" || fail "--json with a file"

sed 's/"poll_ns": 20/"poll_ns": "20"/' "$pod" >"$folder/broken.json"
line=$(grep -n '"poll_ns"' "$pod" | cut -d : -f 1)
refuses "broken.json:$line: lane.poll_ns is \"20\", expected a number" --pod "$folder/broken.json"
sed 's/"lanes": 8,/"lanes": 8/' "$pod" >"$folder/syntax.json"
line=$(grep -n '"port_gb_s"' "$pod" | cut -d : -f 1)
refuses "syntax.json:$line: " --pod "$folder/syntax.json"
refuses "'nowhere' is not one of the pods that are built in: " --pod nowhere
refuses "--quant: 'int9' is not one of none, int8" --pod "$pod" --quant int9
refuses "--payload has no meaning with --quant" --pod "$pod" --ranks 2 --quant int8 --payload
refuses "--payload has no meaning with" --pod "$pod" --ranks 2 --record-bytes 99 --payload
for value in link:0-1 link:0-0:0.5 link:0:0.5 die:0-1:0.5 die:0:1 die:0:0 die:x:0.5 "link:0-1:0.5:1" "die:0:nan"; do
  refuses "--degrade: '$value' is neither" --pod "$pod" --ranks 2 --degrade "$value"
done
refuses "names rank 2, there are 2" --pod "$pod" --ranks 2 --degrade link:0-2:0.5
refuses "--background is 100 GB/s, the pod's ports have 100" --pod "$pod" --background 100
refuses "nowhere.json: cannot be read" --pod "$folder/nowhere.json"
refuses "$folder: cannot be read" --pod "$folder"
refuses "--path: 'pusch' is not one of" --pod "$pod" --path pusch
refuses "--layout: 'flat'" --pod "$pod" --layout flat
refuses "path read needs rank_major" --pod "$pod" --path read
refuses "ranks is 257, the pod generic has 256" --pod "$pod" --ranks 257
refuses "topk is 8, expected 1 to 4" --pod "$pod" --experts 4
refuses "--pod is required" --ranks 4
