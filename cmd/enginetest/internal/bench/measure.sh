#!/bin/sh
# Prints the measured part of docs/performance.md for this machine, in about two minutes. The argument is llama.cpp's llama-bench, or a script that
# runs it (default: llama-bench); it must see $TMPDIR, where the models go (0.9 GB). On a machine that does other work too, run it under
# `chrt -r 10`: both sides get the same.
set -eu
cd "$(dirname "$0")/../../../.."
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
go build -o "$bin" ./cmd/enginetest ./cmd/enginetest/internal/bench/llamacpp
"$bin/llamacpp" -llama-bench "${1:-llama-bench}"
for args in "--shape tiny --cycles 200" "--cycles 200"; do
	printf '\n```\n$ enginetest bench --device cpu %s\n' "$args"
	# shellcheck disable=SC2086 # words of arguments
	"$bin/enginetest" bench --device cpu $args # fails when lives grow
	printf '```\n'
done
