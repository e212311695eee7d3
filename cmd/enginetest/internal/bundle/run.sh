#!/usr/bin/env bash
# run.sh: runs the test binaries of a bundle, each in its package's folder, and says what happened.
#
#   run.sh [options] [LOGS]            LOGS: folder for the output of each binary, summary.md and report.html; default ./logs
#     --only LIST         packages, as in bin/, separated by commas: cuda,runner
#     --run REGEX         go test's -run
#     --short             go test's -short
#     --timeout D         per package; default 10m
#     --allow-skip REGEX  a skip whose "Test: reason" matches is not a failure; can be repeated
#     --slack MIB         device memory that may be in use after the tests and was not before; default 16
#     --sanitize LIST     then run the kernels' tests under these tools of compute-sanitizer (memcheck,racecheck,synccheck, or all), each after a fault
#                         planted for it, which it must find; with --only none, nothing else is run
#
# Exit status: 0 all is well; 1 a test failed, a GPU test was skipped (its name or reason speaks of GPU, CUDA or NVML), memory stayed in
# use, or compute-sanitizer was asked for and found something or is not there; 2 wrong usage. Without a GPU every GPU test is a skip, and so a failure: what is not measured does not pass.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
only='' run='' short='' timeout=10m logs=logs slack=16 tools=''
allow='run by another test, in a process of its own|one device only|needs 2 GPUs, there are 1|two devices share the model here|a measurement:|no measurement is wanted|no NCCL|no C compiler|no AMD|AMD:'
usage() { sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//'; }
wrong() { echo "run.sh: $1" >&2; usage >&2; exit 2; }
while [ $# -gt 0 ]; do
	case $1 in
	--only | --run | --timeout | --slack | --allow-skip | --sanitize) [ $# -ge 2 ] || wrong "$1 wants a value" ;;
	esac
	case $1 in
	--only) only=,$2, ; shift 2 ;;
	--run) run=$2; shift 2 ;;
	--timeout) timeout=$2; shift 2 ;;
	--slack) slack=$2; shift 2 ;;
	--allow-skip) allow="$allow|$2"; shift 2 ;;
	--sanitize)
		tools=${2//,/ }
		[ "$2" != all ] || tools='memcheck racecheck synccheck'
		for tool in $tools; do
			[[ $tool =~ ^(mem|race|sync)check$ ]] || wrong "--sanitize $tool: no such tool"
		done
		shift 2
		;;
	--short) short=-test.short; shift ;;
	-h | --help) usage; exit 0 ;;
	-*) wrong "unknown option $1" ;;
	*) logs=$1; shift ;;
	esac
done
mkdir -p "$logs" && logs=$(cd "$logs" && pwd) || exit 2

# Some tests build things with Go when they find it; here there is no source for it.
clean=''
while read -r dir; do
	[ -x "$dir/go" ] && [ "$dir" != /usr/bin ] && [ "$dir" != /bin ] || clean+=${clean:+:}$dir
done < <(tr : '\n' <<<"$PATH")
PATH=$clean

# One arena of the C library for all threads: with many, what the driver frees stays in any of them, and memory grows by chance.
export MALLOC_ARENA_MAX=${MALLOC_ARENA_MAX:-1}

# gpus prints "uuid, name, driver, used MiB, total MiB" per device, nothing without a driver.
gpus() {
	command -v nvidia-smi >/dev/null || return 0
	nvidia-smi --query-gpu=uuid,name,driver_version,memory.used,memory.total --format=csv,noheader,nounits 2>/dev/null || true
}
export ENGINETEST_VERDICTS=1 # for the report
before=$(gpus)
{
	echo "bundle: $(tr '\n' ' ' <"$here/built")"
	echo "machine: $(uname -srm), $(getconf _NPROCESSORS_ONLN) CPUs, glibc $(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2)"
	echo "${before:-no GPU: nvidia-smi gives none}"
	"$here/enginetest" gpus 2>&1
} >"$logs/machine.txt"
cat "$logs/machine.txt"

# skips prints "Test: reason" of each skip in a log of -test.v: the last thing that the test said is why.
skips() {
	awk '
		/^=== (RUN|NAME|CONT)/ { name = $3; next }
		/^ *--- SKIP: /        { sub(/^ *--- SKIP: /, ""); t = $1; print t ": " said[t]; next }
		/^ +[^ ]+\.go:[0-9]+: / { if (name != "") { line = $0; sub(/^ +[^ ]+: /, "", line); said[name] = line } }
	' "$1"
}
count() { grep -cE "^ *--- $1: " "$2"; }

failed=0 rows='' notes=''
while read -r name rel _; do
	[ -z "$only" ] || [[ $only == *",$name,"* ]] || continue
	log=$logs/$name.log
	echo "== $name"
	began=$(date +%s)
	args=(-test.v -test.timeout="$timeout" $short)
	[ -z "$run" ] || args+=(-test.run="$run")
	(cd "$here/src/$rel" && exec "$here/bin/$name.test" "${args[@]}") >"$log" 2>&1
	rc=$?
	took=$(($(date +%s) - began))
	bad=$(skips "$log" | grep -iE 'gpu|cuda|nvml|nvidia' | grep -vE "$allow")
	verdict=ok
	if [ -n "$bad" ]; then
		verdict='GPU TESTS SKIPPED'
		notes+="$name: a GPU test was skipped:"$'\n'"$(sed 's/^/    /' <<<"$bad")"$'\n'
	fi
	if [ $rc != 0 ]; then
		verdict="FAILED ($rc)"
		notes+="$name: failed, see $log:"$'\n'"$(grep -E '^ *--- FAIL: |^panic: |^fatal error: |^SIG' "$log" | head -20 | sed 's/^/    /')"$'\n'
	fi
	[ "$verdict" = ok ] || failed=1
	rows+="| $name | $(count PASS "$log") | $(count FAIL "$log") | $(count SKIP "$log") | ${took}s | $verdict |"$'\n'
	echo "   $verdict, ${took}s"
done <"$here/packages"
[ -n "$rows" ] || [ "$only" = ,none, ] || wrong "--only $only: no such package; there are: $(cut -d' ' -f1 "$here/packages" | tr '\n' ' ')"

# sanitize runs a tool of compute-sanitizer over tests of the kernels; findings make its exit status 9. "Invalid argument" is how the driver ends the list of a kernel's
# parameters: no finding.
sanitize() { # tool, log, test
	(cd "$here/src/cuda/kernels" && ENGINETEST_SANITIZED=1 exec "$sanitizer" --tool "$1" --report-api-errors no --error-exitcode 9 \
		"$here/bin/cuda-kernels.test" -test.v -test.timeout="$timeout" -test.run="$3") >"$2" 2>&1
}
sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)
for tool in $tools; do
	echo "== $tool"
	if [ -z "$sanitizer" ]; then
		failed=1 rows+="| kernels, $tool | | | | | NO compute-sanitizer in PATH or /usr/local/cuda/bin |"$'\n'
		continue
	fi
	if [ ! -x "$here/bin/cuda-kernels.test" ]; then
		failed=1 rows+="| kernels, $tool | | | | | the bundle lacks ./cuda/kernels |"$'\n'
		continue
	fi
	log=$logs/$tool.log
	ENGINETEST_SANITIZER_PLANT=$tool sanitize "$tool" "$logs/$tool-planted.log" '^TestPlantedForSanitizer$'
	planted=$?
	began=$(date +%s)
	sanitize "$tool" "$log" '^TestKernels$/^native$'
	rc=$?
	took=$(($(date +%s) - began))
	verdict="ok: $(grep -oE '(ERROR|RACECHECK) SUMMARY: .*' "$log" | tail -1), the planted fault was found"
	if [ $planted = 0 ] || ! grep -qE 'SUMMARY: [1-9]' "$logs/$tool-planted.log"; then
		verdict='THE PLANTED FAULT WAS NOT FOUND'
	elif [ $rc != 0 ] || ! grep -qE 'SUMMARY: 0 ' "$log" || ! grep -q '^ *--- PASS: TestKernels/native/' "$log"; then
		verdict="FAILED ($rc)"
		notes+="$tool: see $log:"$'\n'"$(grep -E '^ *--- FAIL: |^=========  *[A-Z]|^panic: |SKIP|SUMMARY' "$log" | head -20 | sed 's/^/    /')"$'\n'
	fi
	[[ $verdict == ok* ]] || failed=1
	rows+="| kernels, $tool | $(count PASS "$log") | $(count FAIL "$log") | $(count SKIP "$log") | ${took}s | $verdict |"$'\n'
	echo "   $verdict, ${took}s"
done

after=$(gpus) memory=''
while IFS=', ' read -r uuid _; do
	[ -n "$uuid" ] || continue
	b=$(grep -F "$uuid" <<<"$before" | awk -F', ' '{print $4}') a=$(grep -F "$uuid" <<<"$after" | awk -F', ' '{print $4}')
	memory+="| $uuid | $b MiB | ${a:-unknown} MiB |"$'\n'
	if [ -z "$a" ] || [ "$a" -gt $((b + slack)) ]; then
		failed=1
		notes+="$uuid: ${a:-an unknown number of} MiB in use after the tests, $b MiB before; who: $("$here/enginetest" gpus 2>&1)"$'\n'
	fi
done <<<"$before"
{
	echo "### GPU tests"
	echo
	sed 's/^/    /' "$logs/machine.txt"
	printf '\n| package | passed | failed | skipped | time | |\n|---|---|---|---|---|---|\n%s' "$rows"
	[ -z "$memory" ] || printf '\n| GPU | memory before | after |\n|---|---|---|\n%s' "$memory"
	[ -z "$notes" ] || printf '\n```\n%s```\n' "$notes"
} >"$logs/summary.md"
# The classes of the failures; what counts is decided above.
mapfile -t results < <(cut -d' ' -f1 "$here/packages" | while read -r name; do [ ! -s "$logs/$name.log" ] || echo "$logs/$name.log"; done)
if [ ${#results[@]} -gt 0 ]; then
	"$here/enginetest" report --github=false --max-capacity-skips=-1 --html "$logs/report.html" --json "$logs/report.json" --junit "$logs/junit.xml" \
		"${results[@]}" >"$logs/report.txt" 2>&1
fi
echo
cat "$logs/summary.md"
exit $failed
