package report

import (
	"net"
	"regexp"
	"strings"

	"github.com/enginetest/enginetest/verdict"
)

// What programs of all kinds say when they end: the words of the operating system, of HTTP, and of
// runtimes that report an exception that nothing caught.
var (
	// exhausted is how runtimes say that memory is spent.
	exhausted = regexp.MustCompile(`std::bad_alloc|\bMemoryError\b|OutOfMemoryError|heap out of memory|out of memory allocating|` +
		`\bbad allocation\b|Could not reserve enough space|unable to create (new )?native thread|can't start new thread|` +
		`failed to create new OS thread|\b(failed|unable) to (allocate|reserve)\b|could not allocate|\bexit(ed with)? (status|code) 137\b|[Cc]annot fork\b|pthread_create failed|Unable to allocate .* (for an array|bytes)`)

	// foreign is how a program ends whose error is its own: it exits, dies, or reports an exception.
	foreign = regexp.MustCompile(`Traceback \(most recent call last\)|\bexit(ed with)? (status|code) \d+|signal: \w+|` +
		`Exception in thread "|\bthread '.*' panicked at|^\s*at .*\(.*:\d+\)|runtime error: |malformed HTTP|` +
		`(?m:^[\w.]+\.py:\d+: \w+)|\b(harness|runner): \S+ did not start: |\b(harness|runner): generate: |` +
		`C\+\+ exception with description|\bECONNRE(FUSED|SET)\b|Connection refused|fetch failed`)

	// wronglyAsked is how a server or a fixture says that the request was at fault.
	wronglyAsked = regexp.MustCompile(`\b4(0[0-9]|1[0-9]|2[0-8]|3[0-9]) (\w+ )?(bad request|not found|unauthorized|forbidden|` +
		`method not allowed|unprocessable|payload too large|error)|\b(has|with) no parameter\b|no such (method|verb)|` +
		`"error": ?"[^"]* not found|"code": ?4(0[0-9]|1[0-9]|2[0-8])\b|: 4(0[0-9]|1[0-9]|2[0-8]) `)

	// status is an HTTP status that is an error of a server.
	status = regexp.MustCompile(`(?i)(\b|HTTP |error:? |status (code )?)(429|50[0234])[: ]+("?(Too Many|Internal Server|Bad Gateway|` +
		`Service Unavail|Gateway Time|Server Error))|(?:HTTP Error|returned error:?|ERROR|HTTP/[\d.]+"?|status code:?) (429|50[0234])\b`)

	link      = regexp.MustCompile(`\b(?:https?|ssh|git|docker|tcp)://([\w.-]+|\[[0-9a-f:]+\])|\b(?:registry|host) ([\w-]+(?:\.[\w-]+)+)`)
	connectTo = regexp.MustCompile(`(?i)(?:connect to|connecting to|connect|dial tcp|dial udp) (?:to )?([\w-]+(?:\.[\w-]+)+)[: ]`)
	noConnect = regexp.MustCompile(`(?i)couldn't connect to server|failed to connect to|connection timed out|unreachable|no route to host`)
	noDevice  = regexp.MustCompile(`libcuda\.so|libnvidia-ml\.so|"?nvidia-smi"?: (executable file )?not found|/dev/nvidia|` +
		`could not lease \d+ of|\d+ devices wanted, `)
	noLibrary = regexp.MustCompile(`cannot open shared object file|Library not loaded:|DLL load failed`)
)

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
	if noConnect.MatchString(errors) && elsewhere(whole, connectTo) {
		return finding{class: verdict.ClassInfra, evidence: "a host elsewhere cannot be reached"}, true
	}
	for _, r := range decisive {
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
	case elsewhere(text, link) || code == "502" && link.FindString(text) == "":
		return finding{class: verdict.ClassInfra, evidence: "a service elsewhere answered " + code}, true
	case code == "500" || code == "502":
		return finding{}, false // the rules for engines know more
	case code == "504":
		return finding{class: verdict.ClassTimeout, evidence: "the server answered 504"}, true
	}
	return finding{class: verdict.ClassCapacity, evidence: "the server is full"}, true
}

// elsewhere reports whether a text names a host that is not this machine, and none that is.
func elsewhere(text string, host *regexp.Regexp) bool {
	found := false
	for _, m := range host.FindAllStringSubmatch(text, 16) {
		name := strings.Trim(m[1], "[]")
		if len(m) > 2 {
			name = orElse(name, m[2])
		}
		ip := net.ParseIP(name)
		if name == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified()) {
			return false
		}
		found = true
	}
	return found
}
