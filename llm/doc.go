// Package llm holds what passes between a test and any inference engine: requests and sampling
// parameters, outputs and deltas, messages, typed errors, injected faults and shutdown reports.
//
// It imports no other package of this module, so that an engine, a server's client and a fixture
// can share these types without linking each other.
package llm
