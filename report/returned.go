package report

import (
	"regexp"
	"strings"
)

var (
	// operation is how errors of Go's library and of the operating system begin.
	operation = regexp.MustCompile(`(?m)(^|: )(dial|listen|accept|read|write|close|open|mkdir|mmap|stat|lstat|rename|remove|fork/exec|connect|bind|exec)\b[^:\n]*: |` +
		`(^|: )(http|net/http|tls|x509|json|io|bufio|gzip|zip|sql|rpc): \S|\b(Get|Post|Put|Head|Delete) "|: (permission denied|invalid argument|use of closed network connection|bad file descriptor|file exists)\b`)
	// ownFile is a file that the test brings along and that is not there.
	ownFile = regexp.MustCompile(`(testdata/[^:\n]*|\b(open|stat|lstat) [^/:\n][^:\n]*): no such file or directory|No such file or directory: '[^/'\n]`)
	// byTest is the last frame of pytest's in test code.
	byTest = regexp.MustCompile(`(?m)^(test_\w+|\w+_test|conftest)\.py:\d+: \w+`)
	// ended is an error that is called a timeout and no more.
	ended = regexp.MustCompile(`(?m): Timeout\s*$`)
)

// returned reports whether a test failed with an error that the code under test returned, and not
// with what the test says of its result.
func returned(c cause) bool {
	text := asserted.ReplaceAllString(decided(c.text), "")
	if c.comparison || childFailed(text) || comparing.MatchString(text) || ownFile.MatchString(text) ||
		wronglyAsked.MatchString(strings.ToLower(text)) {
		return false
	}
	return operation.MatchString(text) || status.MatchString(text) || asserted.MatchString(c.text)
}

// asserted is how assertions begin that a function returns no error.
var asserted = regexp.MustCompile(`(?i)(received unexpected error:|unexpected error:|assertion failed: error is not nil:|expected nil, but got:|expected success, but got an error:)`)

var (
	// uncaught is what std::terminate says of the exception that ended a program.
	uncaught = regexp.MustCompile(`(?m)^\s*what\(\): +(.*)$`)
	// childTests is how tests that another one runs, and diff, say that an expectation is not met:
	// those of Rust, Python, Perl and Node.js, and TAP.
	childTests = regexp.MustCompile(`(?m)^\s*(test result: FAILED\. |FAILED \(failures=|# +Failed test |--- \S.*\n\s*\+\+\+ \S.*\n\s*@@ )|\bERR_ASSERTION\b`)
	notOK      = regexp.MustCompile(`(?m)^\s*not ok \d+ `)
	// rpcFailed are the status codes of gRPC with which a server says that it failed.
	rpcFailed = regexp.MustCompile(`\bcode = (Internal|Unknown|DataLoss|FailedPrecondition|Aborted|Unavailable)\b`)
)

// childFailed reports whether tests that another test runs did not meet an expectation. A test of
// Node.js that threw an error of the code under test has a failureType and no ERR_ASSERTION.
func childFailed(text string) bool {
	return childTests.MatchString(text) || notOK.MatchString(text) && !strings.Contains(text, "failureType: ")
}

// counted is how a test says that it found a leak itself.
var counted = regexp.MustCompile(`(?i)\b([1-9]\d* [\w ]*\b(leaked|outlived|left (behind|open|running)|still (open|running|alive))\b|leaked [1-9]\d* )`)

// beside reports whether another error stands beside the machine's, as errors.Join writes them: a
// line of its own in a message without the output of a program.
func beside(text string) bool {
	if foreign.MatchString(text) || strings.ContainsAny(text, "{}<>") {
		return false
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || !joined.MatchString(line) || strings.Contains(line, "context canceled") {
			continue
		}
		if _, ok := machine(line, line); !ok {
			return true
		}
	}
	return false
}

// joined is a line that begins as Go's errors do, with what was being done.
var joined = regexp.MustCompile(`^[a-z][\w ./-]*: \S`)
