// Package failures makes logs of failures whose cause is known, by letting real programs fail:
// compilers, servers, interpreters and test frameworks on full disks, without memory, without a
// network, with defects. Package report is measured with them:
//
//	ENGINETEST_LONG=1 go test . -run TestMake -set 1 -out DIR
//
// The cases of sets 1 and 2 and the ways to report all are drawn from one pool with a fixed seed, so
// that set 2 has no case of set 1. Later sets were written after the rules were mended with the ones
// before. A case's name is its class and its cause. The modules in testdata are engines with
// defects and their tests, which run in a name space where hub.example.com is another address.
package failures
