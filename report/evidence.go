package report

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/enginetest/enginetest/verdict"
)

// What programs of all kinds say when they end: the words of the operating system, of HTTP, and of
// runtimes that report an exception that nothing caught.
var (
	// exhausted is how runtimes say that memory is spent.
	exhausted = regexp.MustCompile(`std::bad_alloc|\bMemoryError\b|OutOfMemoryError|heap out of memory|out of memory allocating|` +
		`\bbad allocation\b|Could not reserve enough space|unable to create (new )?native thread|can't start new thread|` +
		`failed to create new OS thread|\b(failed|unable) to (allocate|reserve)\b|could not allocate|\bexit(ed with)? (status|code) 137\b|[Cc]annot fork\b|pthread_create failed|Unable to allocate .* (for an array|bytes)|memory allocation of (size )?\d+( bytes)? failed|OutOf(Device|Host)Memory|memory \(\d+ bytes\) could not be allocated`)

	// foreign is how a program ends whose error is its own: it exits, dies, or reports an exception.
	foreign = regexp.MustCompile(`Traceback \(most recent call last\)|\bexit(ed with)? (status|code) \d+|signal: \w+|` +
		`Exception in thread "|\bthread '.*' panicked at|^\s*at .*\(.*:\d+\)|runtime error: |malformed HTTP|` +
		`(?m:^\w+\.py:\d+: \w+)|\b(harness|runner): \S+ did not start: |\b(harness|runner): generate: |` +
		`C\+\+ exception with description|\bECONNRE(FUSED|SET)\b|Connection refused|fetch failed`)

	// wronglyAsked is how a server or a fixture says that the request was at fault.
	wronglyAsked = regexp.MustCompile(`\b4(0[0-9]|1[0-9]|2[0-8]|3[0-9]) (\w+ )?(bad request|not found|unauthorized|forbidden|` +
		`method not allowed|unprocessable|payload too large|error)|\b(has|with) no parameter\b|no such (method|verb)|` +
		`"error": ?"[^"]* not found|manifest unknown|manifest: file does not exist|no rule to make target|\(notfound\)|reference "[^"]*": not found|` +
		`code = (notfound|invalidargument|unimplemented|alreadyexists|permissiondenied|unauthenticated|outofrange)\b|"code": ?4(0[0-9]|1[0-9]|2[0-8])\b|: 4(0[0-9]|1[0-9]|2[0-8]) `)

	// status is an HTTP status that is an error of a server.
	status = regexp.MustCompile(`(?i)(\b|HTTP |error:? |status (code )?)(429|50[0234])[: ]+("?(Too Many|Internal Server|Bad Gateway|` +
		`Service Unavail|Gateway Time|Server Error))|(?:HTTP Error|returned error:?|ERROR|HTTP/[\d.]+"?|status code:?|Error code:) (429|50[0234])\b`)

	noDevice = regexp.MustCompile(`libcuda\.so|libnvidia-ml\.so|"?nvidia-smi"?: (executable file )?not found|/dev/nvidia|` +
		`could not lease \d+ of|\d+ devices wanted, `)
	noLibrary = regexp.MustCompile(`cannot open shared object file|Library not loaded:|DLL load failed`)
)

// workerDied is how a server says that a process behind it has ended.
var workerDied = regexp.MustCompile(`(?i)no healthy upstream|\bsignal \d+|\b(died|crashed|exited|terminated|no longer running)\b`)

// machine looks for what the machine, the network or a clock did: in errors, the text of a failure
// without what it quotes. whole has the quotes, which may hold addresses.
func machine(errors, whole string) (finding, bool) {
	lower := strings.ToLower(errors)
	switch {
	case noDevice.MatchString(whole):
		return finding{class: verdict.ClassCapacity, evidence: "there is no such device"}, true
	case exhausted.MatchString(errors):
		return finding{class: verdict.ClassCapacity, evidence: "a program ran out of memory"}, true
	case noLibrary.MatchString(errors):
		return finding{class: verdict.ClassInfra, evidence: "a library is not installed"}, true
	}
	if f, ok := answered(whole); ok {
		return f, true
	}
	if f, ok := kubernetes(errors); ok {
		return f, true
	}
	if f, ok := xid(errors); ok {
		return f, true
	}
	if f, ok := network(errors, whole); ok {
		return f, true
	}
	asked := wronglyAsked.MatchString(strings.ToLower(whole))
	for _, r := range decisive {
		if asked && r.class == verdict.ClassInfra {
			continue
		}
		if _, ok := r.match(errors, lower); ok {
			return finding{class: r.class, evidence: r.name}, true
		}
	}
	return finding{}, false
}

// answered judges an HTTP status by whose it is: of a service elsewhere, or of a server on this
// machine, which is the one under test.
func answered(text string) (finding, bool) {
	m := status.FindStringSubmatch(text)
	if m == nil || wronglyAsked.MatchString(strings.ToLower(text)) {
		return finding{}, false
	}
	code := orElse(m[3], m[6])
	switch {
	case peer(text) == peerAway:
		return finding{class: verdict.ClassInfra, evidence: "a service elsewhere answered " + code}, true
	case code == "500" || code == "502" || workerDied.MatchString(text):
		return finding{}, false // the rules for engines know more
	case code == "504":
		return finding{class: verdict.ClassTimeout, evidence: "the server answered 504"}, true
	}
	return finding{class: verdict.ClassCapacity, evidence: "the server is full"}, true
}

var apiReason = regexp.MustCompile(`Error from server \((\w+)\)|The connection to the server \S+ was refused|node was low on resource: ([\w-]+)|exceeded quota: `)

// apiFailures are the reasons of an API server that blame the cluster.
var apiFailures = []string{"ServiceUnavailable", "InternalError", "TooManyRequests", "Timeout", "ServerTimeout"}

// kubernetes judges what an API server or a kubelet states as its reason.
func kubernetes(text string) (finding, bool) {
	m := apiReason.FindStringSubmatch(text)
	switch {
	case m == nil:
		return finding{}, false
	case m[2] == "memory" || strings.Contains(text, "exceeded quota: "):
		return finding{class: verdict.ClassCapacity, evidence: "the cluster is full"}, true
	case m[1] == "" || slices.Contains(apiFailures, m[1]):
		return finding{class: verdict.ClassInfra, evidence: "the cluster failed: " + m[0]}, true
	}
	return finding{}, false
}

var (
	xidNumber = regexp.MustCompile(`(?i)\bxid\b(?: \(PCI:[\w:.]+\))?:? (\d+)`)
	// programXids are the errors of the NVIDIA driver that a program's own kernel causes: an
	// exception, a page fault, a reset of its channel.
	programXids = map[string]bool{"13": true, "31": true, "43": true, "45": true, "68": true, "69": true}
)

// xid judges an error of the NVIDIA driver by its number.
func xid(text string) (finding, bool) {
	m := xidNumber.FindStringSubmatch(text)
	switch {
	case m == nil:
		return finding{}, false
	case programXids[m[1]]:
		return finding{class: verdict.ClassEngine, evidence: "Xid " + m[1] + ", which a kernel causes"}, true
	}
	return finding{class: verdict.ClassInfra, evidence: "the device or its driver failed: Xid " + m[1]}, true
}

var amount = regexp.MustCompile(`(?i)allocat\w*\s+(-?[\d.]+) ?(GiB|TiB|GB|TB|PiB|bytes)`)

// absurd reports whether memory was asked for that no machine has: more than 1 PiB, or less than
// none.
func absurd(text string) bool {
	m := amount.FindStringSubmatch(text)
	if m == nil {
		return false
	}
	n, err := strconv.ParseFloat(strings.TrimRight(m[1], "."), 64)
	unit := map[string]float64{"b": 1, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}[strings.ToLower(m[2][:1])]
	return err == nil && (n < 0 || n*unit > 1<<50)
}
