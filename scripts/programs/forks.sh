# Runs hundreds of short programs: pipelines, subshells, substitutions. Usage: forks.sh [SCALE]
set -euo pipefail

scale=${1:-1}
declare -A seen
for ((i = 0; i < 40 * scale; i++)); do
    word=$(echo "number $i" | tr a-z A-Z | sed 's/NUMBER/word/')
    seen[$word]=$(printf '%s\n' "$word" "$word" | sort | uniq -c | awk '{print $1}')
done
for word in "${!seen[@]}"; do echo "$word ${seen[$word]}"; done | sort | cksum
(for i in {1..20}; do (echo "$i"; exit 0) & done; wait) | sort -n | paste -sd,
seq 1 $((30000 * scale)) | awk '{sum[$1 % 97] += $1} END {for (k in sum) t += sum[k] * k; print t}'
text=$(seq 1 5000)
text=${text//1/one}
echo "${#text}" "$(echo "$text" | cksum)"
