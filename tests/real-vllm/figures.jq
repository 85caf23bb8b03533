# The figures of a run, from `ctl journal --json`: Markdown tables.
#
# usage: jq -rf figures.jq journal.json

def seconds: if . == null then "unknown" else . * 1000 | round / 1000 | tostring end;
def since($from): (. - $from) / 1e9;
def median: sort | if length == 0 then null else .[((length - 1) / 2 | floor)] end;
# Nanoseconds that intervals cover together within [low, high].
def covered($low; $high):
  map([([.[0], $low] | max), ([.[1], $high] | min)]) | map(select(.[0] < .[1])) | sort
  | reduce .[] as $i ({end: 0, sum: 0};
      ([$i[0], .end] | max) as $from | if $i[1] > $from then {end: $i[1], sum: (.sum + $i[1] - $from)} else . end)
  | .sum;

. as $page
| [.entries[] | select(.operation != null)] | group_by(.operation) | map(
  (map(.record) | group_by(.kind) | map({key: .[0].kind, value: .}) | from_entries) as $r
  | ($r.operation_accepted // [{}])[0] as $asked
  | ($r.operation_ended // [{}])[0] as $over
  | select($asked.operation != null and $over.ended != null)
  | ($r.step_ended // []) as $steps
  | (($r.engine_work // [{}])[0].work) as $work
  | ($steps | map(select(.phase == "drain") | [.began, .ended])) as $drain
  | {
      operation: $asked.operation, engine: $asked.engine, from: $asked.from, run: .[0].run,
      strategy: $asked.strategy, order: $asked.order, leave: $asked.leave, drain: $asked.drain,
      result: $over.outcome.result,
      took: ($over.ended | since($over.accepted)),
      first: (if $over.first_token == null then null
              else ($over.first_token | since($over.accepted)) - ($drain | covered($over.accepted; $over.first_token)) / 1e9 end),
      drained: (($drain | map(.[1] - .[0]) | add // 0) / 1e9),
      engine_s: (if $work == null or $over.first_token == null then null
                 else (($work | map([.began, .ended])) + $drain | covered($over.accepted; $over.first_token))
                      - ($drain | covered($over.accepted; $over.first_token)) | . / 1e9 end),
      probe: ($steps | map(select(.phase == "probe" and .engine == $asked.engine)) | first
              | if . == null then null else (.ended - .began) / 1e9 end),
      ready: ($steps | map(select(.phase == "ready" and .outcome.result == "ok")) | last
              | if . == null then null else .ended | since($over.accepted) end),
      warm: ($steps | map(select(.phase == "warm_up" and .outcome.result == "ok")) | last
             | if . == null then null else .ended | since($over.accepted) end),
    }
) as $operations
| "| start of | asked by | to ready, s | warm and canary recorded, s | whole, s | result |", "|---|---|---|---|---|---|",
  ($operations[] | select(.ready != null)
   | "| \(.engine) (\(.operation)) | \(if .run then "a cycle" else "the agent" end) | \(.ready | seconds) | \(.warm | seconds) | \(.took | seconds) | \(.result) |"),
  "",
  "| handoffs | leave | order | drain | n | to first token, median s | max s | engine's own, median s | the rest, median s | max s | of it the probe, median s |",
  "|---|---|---|---|---|---|---|---|---|---|---|",
  ($operations | map(select(.operation == "handoff" and .result == "ok"))
   | group_by([.strategy, .leave, .order, .drain, (.drained > 1)])[]
   | (map(select(.engine_s != null) | .first - .engine_s)) as $overhead
   | "| \(.[0].strategy) | \(.[0].leave) | \(.[0].order) | \(.[0].drain)\(if .[0].drained > 1 then ", for a stream" else "" end) | \(length) | \(map(.first) | median | seconds) | \(map(.first) | max | seconds) | \(map(select(.engine_s != null) | .engine_s) | median | seconds) | \($overhead | median | seconds) | \($overhead | max | seconds) | \(map(.probe) | median | seconds) |"),
  "",
  "| phase | engine | n | median, s | max, s |", "|---|---|---|---|---|",
  ([$page.entries[].record | select(.kind == "step_ended" and .outcome.result == "ok")] | group_by([.phase, .engine])[]
   | map((.ended - .began) / 1e9) as $took
   | "| \(.[0].phase) | \(.[0].engine) | \($took | length) | \($took | median | seconds) | \($took | max | seconds) |")
