#!/usr/bin/env bash
# `ubep probe`: it writes a pod that `ubep sim` runs on all paths; input errors give exit code 2 and
# one line that names the value.
source "$(dirname "$0")/sim_common.bash"

refuses_probe() { # text, command, arguments
  local text=$1 output status=0
  shift
  output=$("$@" 2>&1 >/dev/null) || status=$?
  if [ "$status" -ne 2 ] || [[ $output != *"$text"* ]] || [[ $output == *$'\n'* ]]; then
    fail "$*: status $status, expected 2 and one line with '$text'; got: $output"
  fi
}

refuses_probe "--topk is 9, --experts 8" "$ubep" probe --topk 9 --experts 8
refuses_probe "--store: 'middle' is not one of auto, near, far" "$ubep" probe --store middle
refuses_probe "'$folder/no/pod.json'" "$ubep" probe -o "$folder/no/pod.json"
refuses_probe "expected at most" "$ubep" probe --tokens 100000 --hidden 7168
refuses_probe "needs 2 CPUs" taskset -c "$(taskset -cp $$ | sed 's/.*[ ,-]//')" "$ubep" probe

if [ "$(nproc)" -lt 2 ]; then
  echo "SKIPPED: one CPU"
  exit 77
fi

# A host that moves the CPUs meanwhile makes it say so, with exit code 1.
probe() { # arguments
  local status=1
  for _ in 1 2 3 4 5 6; do
    status=0
    "$ubep" probe --tokens 3 --hidden 64 --experts 16 --topk 4 --laps 10 "$@" 2>"$folder/error" \
      || status=$?
    grep -q 'the pod is of no use' "$folder/error" || break
  done
  [ "$status" -eq 0 ] || fail "probe $*: status $status: $(cat "$folder/error")"
}

for store in near far; do
  probe --store $store -o "$folder/pod.json"
  python3 - "$folder/pod.json" $store <<'END' || fail "the pod: $(cat "$folder/pod.json")"
import json, sys
pod = json.load(open(sys.argv[1]))
assert pod["name"] == "this-machine" and pod["mapped"] == sys.argv[2]
assert "3 tokens, hidden 64, top-4 of 16 experts" in pod["source"], pod["source"]
assert (pod["ranks"], pod["lanes"], len(pod["tiers"])) == (2, 1, 1)
assert 1 < pod["tiers"][0]["latency_ns"] < 1e6
for key, value in pod["lane"].items():
    assert value > 0 or key in ("read_ns", "fence_ns"), key
assert ("share_gb_s" in pod["combine"]) == (pod["mapped"] == "far")
assert set(pod["bsp"]) == {"put_gb_s", "copy_gb_s", "read_gb_s"}
assert set(pod["bsp_combine"]) == {"put_gb_s", "reduce_gb_s", "read_gb_s"}
END
  for items in "read rank_major" "pull rank_major" "pull expert_major" "push rank_major" \
    "push expert_major" "bsp expert_major" "allgather rank_major"; do
    read -r path layout <<<"$items"
    "$ubep" sim --pod "$folder/pod.json" --tokens 5 --hidden 64 --experts 16 --topk 4 --aligned \
      --path "$path" --layout "$layout" --payload --json - 2>"$folder/table" \
      | grep -q '"wrong_rows": 0' || fail "$store, $items: $(cat "$folder/table")"
    grep -q ', aligned' "$folder/table" || fail "$(cat "$folder/table")"
  done
done

refuses "the pod this-machine is mapped: it has no links" --pod "$folder/pod.json" --background 1
refuses "the pod this-machine is mapped: it has no links" --pod "$folder/pod.json" \
  --degrade die:1:0.5
