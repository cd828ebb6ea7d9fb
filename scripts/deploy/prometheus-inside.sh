#!/usr/bin/env bash
# The part of check-deploy.sh that runs in a booted root with Debian's Prometheus in it: the rules of
# config/prometheus, and a Prometheus that scrapes two daemons while a job runs.
#
#   prometheus-inside.sh
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

# shellcheck source=scripts/packages/inside.sh
. scripts/packages/inside.sh
readonly PORT=9470 SCRAPE_S=60
server=http://127.0.0.1:9090

start_cluster() {
    scripts/cluster.sh up --nodes 2 --build /usr --set 'metrics.address="0.0.0.0"' --set "metrics.port=$PORT"
}

on_node0() {
    scripts/cluster.sh exec node0 -- "$@"
}

# What an expression gives, a line for each series.
ask() {
    on_node0 promtool query instant "$server" "$1"
}

# The configuration of config/prometheus, with these nodes and a shorter time.
start_prometheus() {
    mkdir -p /root/prometheus && cp config/prometheus/alerts.yml /root/prometheus || return
    sed -e 's/15s/1s/' -e "s/10\.0\.0\.\([12]\):9470/10.77.0.\1:$PORT/" config/prometheus/prometheus.yml \
        >/root/prometheus/prometheus.yml
    promtool check config /root/prometheus/prometheus.yml || return
    on_node0 prometheus --config.file=/root/prometheus/prometheus.yml --storage.tsdb.path=/root/prometheus/data \
        --web.listen-address=127.0.0.1:9090 >/root/prometheus.log 2>&1 &
    wait_for ask 1 || {
        tail -n 10 /root/prometheus.log
        return 1
    }
}

# Two ranks on each node.
scrape_while_a_job_runs() {
    local status=0
    scripts/cluster.sh run -n 2 -- timeout --preserve-status -s INT "$SCRAPE_S" \
        shoalperf all_reduce -b 4M -n 100000000 >/root/job.log 2>&1 &
    job=$!
    sleep "$((SCRAPE_S - 10))"
    # Nobody was missed, both counted, and each saw the other: asked while the job still runs.
    holds 'count(min_over_time(up{job="shoal"}[30s]) == 1)' 2 || status=1
    holds 'count(count_over_time(shoal_collectives_total[40s]) >= 20)' 2 || status=1
    holds 'count(rate(shoal_collectives_total[30s]) > 0)' 2 || status=1
    holds 'count(rate(shoal_peer_out_bytes_total[30s]) > 0)' 2 || status=1
    holds 'sum(shoal_jobs{state="running"})' 2 || status=1
    return "$status"
}

# One series with this value.
holds() {
    local said
    said=$(ask "$1")
    printf '%s: %s\n' "$1" "$said"
    [[ $said == *"=> $2 @"* ]]
}

metrics_are_clean() {
    on_node0 python3 -c "import urllib.request
print(urllib.request.urlopen('http://10.77.0.2:$PORT/metrics').read().decode(), end='')" >/root/metrics || return
    promtool check metrics </root/metrics
}

rules_are_right() {
    promtool check rules config/prometheus/alerts.yml && promtool test rules config/prometheus/alerts_test.yml
}

# Prometheus takes each, and each name that begins with shoal_ is one that the daemons have.
questions_are_understood() {
    python3 - "$server" <<'END' >/root/questions || return
import json, re, sys
panels = json.load(open("config/prometheus/dashboard.json"))["panels"]
for panel in panels:
    for target in panel["targets"]:
        print(target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*"))
for line in open("config/prometheus/alerts.yml"):
    if line.strip().startswith("expr: "):
        print(line.strip()[len("expr: "):])
END
    local question name count=0
    while IFS= read -r question; do
        ask "$question" </dev/null >/root/answer 2>&1 || {
            printf '%s:\n' "$question"
            cat /root/answer
            return 1
        }
        count=$((count + 1))
        while read -r name; do
            grep -qE "^(# TYPE )?${name}([{ ]|\$)" /root/metrics || {
                printf '%s: no daemon has %s\n' "$question" "$name"
                return 1
            }
        done < <(grep -oE '\bshoal_[a-z_]+' <<<"$question")
    done </root/questions
    printf '%d questions\n' "$count"
    ((count > 20))
}

printf 'prometheus %s\n' "$(prometheus --version 2>&1 | awk 'NR == 1 { print $3 }')"
systemctl stop shoald prometheus
check 'the alert rules are right, and fire when they should' rules_are_right
check 'two daemons with metrics' start_cluster
check 'Prometheus takes the configuration' start_prometheus
check "it scrapes both for $SCRAPE_S s while a job runs" scrape_while_a_job_runs
check 'promtool finds nothing wrong with the metrics' metrics_are_clean
check 'it understands the rules and the dashboard, of metrics that there are' questions_are_understood
wait "$job"
scripts/cluster.sh down
