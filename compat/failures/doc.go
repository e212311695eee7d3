// Package failures makes logs of failures whose cause is known, by letting real programs fail:
// compilers, servers, interpreters and test frameworks on full disks, without memory, without a
// network, with defects. Package report is measured with them:
//
//	ENGINETEST_LONG=1 go test . -run TestMake -set 1 -out DIR
//
// The cases and the ways to report them are drawn from one pool with a fixed seed, so that set 2
// has no case of set 1. A case's name is its class and its cause.
package failures
