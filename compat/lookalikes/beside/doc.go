// Package beside compares leakcheck with goleak and with the runtime's goroutine leak profile. Its
// test plants leaks, each in a process of its own, alone and beside a neighbour: a test that runs in
// parallel and has a goroutine of its own.
//
//	go test ./beside -run Table -table -v
package beside
