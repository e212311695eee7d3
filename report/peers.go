package report

import (
	"net"
	"regexp"
	"strings"

	"github.com/enginetest/enginetest/verdict"
)

// An error of the network blames the machine only for its peer: the server under test runs on this
// machine, or on a host whose name only a private network knows.
var (
	// peers are the ways in which errors name a host. A name server is none: "lookup x on IP:53".
	peers = regexp.MustCompile(`(?i)\b(?:https?|ssh|git|docker|tcp|s3|grpc)(?:://|:%2F%2F)(?:[\w.-]+@)?([\w.-]+|\[[0-9a-f:]+\])|` +
		`\b(?:dial (?:tcp|udp)[46]?|ECONN\w+|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH) ([\w.-]+|\[[0-9a-f:]+\]):\d|` +
		`\b(?:tcp|udp) \S+->([\d.]+|\[[0-9a-f:]+\]):\d|\b(?:ENOTFOUND|EAI_AGAIN) ([\w.-]+)|\blookup ([\w-]+(?:\.[\w-]+)+|[\w-]+(?:: no such|: dial|: server| on ))|\bhost(?:name)?=?:? ?'?([\w-]+(?:\.[\w-]+)+)|` +
		`\b(?:connect(?:ing)?|connection) (?:to|with) (?:host |server |address )?"?'?([\w-]+(?:\.[\w-]+)+(?::\d+)?|localhost)|\bregistry ([\w-]+(?:\.[\w-]+)+)`)
	resolvers = regexp.MustCompile(` on [\d.:\[\]a-f]+:53\b|\b(dial|read) udp [^ ]+:53\b`)
	hostPort  = regexp.MustCompile(`^(.*):\d+$`)

	// dropped is how errors say that a peer did not answer, or not to the end.
	dropped = regexp.MustCompile(`(?i)connection refused|connection reset|connection failed|connection (was )?closed|unexpected EOF|: EOF\b|remote end hung up|` +
		`ECONNRE(FUSED|SET)|ETIMEDOUT|(couldn.t|cannot|could not|failed to|unable to) connect|broken pipe|timed? ?out\b|deadline exceeded|Client\.Timeout|RemoteDisconnected|failed to (fetch|download)|without response|premature(ly)? |ConnectionPool\(`)
	// unreached is how they say that they found no way to it.
	unreached = regexp.MustCompile(`(?i)no such host|temporary failure (in name resolution|resolving)|name or service not known|` +
		`no address associated with hostname|server misbehaving|could not resolve|unable to resolve|failed to resolve|getaddrinfo|\bENOTFOUND\b|\bEAI_AGAIN\b|` +
		`unknownhostexception|unresolvedaddress|network is unreachable|ENETUNREACH|no route to host|EHOSTUNREACH|` +
		`TLS handshake timeout|proxyconnect tcp|connection timed out|unreachable`)
	untrusted = regexp.MustCompile(`(?i)certificate has expired|certificate verify failed|certificate problem|certificate is not yet valid|` +
		`x509: |self[- ]signed certificate|local issuer certificate|unable to verify the first certificate|` +
		`certificate signed by unknown authority|certificate verification failed|pkix path building failed`)
)

// How far away the peers of an error are.
const (
	peerUnknown = iota
	peerHere    // at least one is this machine
	peerNear    // in a private network
	peerAway
)

// peer returns where the hosts that a text names are: here when any is.
func peer(text string) int {
	far := peerUnknown
	for _, m := range peers.FindAllStringSubmatch(resolvers.ReplaceAllString(text, ""), 32) {
		for _, name := range m[1:] {
			if name == "" {
				continue
			}
			switch p := place(name); {
			case p == peerHere:
				return peerHere
			case far == peerUnknown || p < far:
				far = p
			}
		}
	}
	return far
}

func place(name string) int {
	if m := hostPort.FindStringSubmatch(name); m != nil {
		name = m[1]
	}
	name = strings.ToLower(strings.Trim(name, "[]."))
	if ip := net.ParseIP(name); ip != nil {
		switch {
		case ip.IsLoopback() || ip.IsUnspecified():
			return peerHere
		case ip.IsPrivate() || ip.IsLinkLocalUnicast():
			return peerNear
		}
		return peerAway
	}
	if name == "localhost" {
		return peerHere
	}
	for _, own := range []string{".local", ".svc", ".internal", ".lan", ".localdomain"} {
		if strings.HasSuffix(name, own) {
			return peerNear
		}
	}
	if !strings.Contains(name, ".") {
		return peerNear
	}
	return peerAway
}

// network judges an error of the network by its peer. Names that no server knows and hosts that
// cannot be reached are the network's failure wherever they are, except for this machine and for
// names of one word: those come from the test, or from its cluster.
func network(errors, whole string) (finding, bool) {
	infra := func(evidence string) (finding, bool) {
		return finding{class: verdict.ClassInfra, evidence: evidence}, true
	}
	unfound, distrust, silent := unreached.MatchString(errors), untrusted.MatchString(errors), dropped.MatchString(errors)
	if !unfound && !distrust && !silent {
		return finding{}, false
	}
	far := peer(whole)
	if far == peerHere || wronglyAsked.MatchString(strings.ToLower(whole)) {
		return finding{}, false
	}
	switch {
	case unfound:
		if far == peerNear && !reachable.MatchString(resolvers.ReplaceAllString(whole, "")) {
			return finding{}, false
		}
		return infra("the network")
	case distrust:
		return infra("a certificate")
	case far == peerAway && silent:
		return infra("a service elsewhere did not answer")
	}
	return finding{}, false
}

// reachable is what a host of a private network is unreachable by: its address, or a name with dots.
var reachable = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+|[\w-]+\.[\w-]+\.(svc|local|internal|lan)`)
