//go:build !unix

package cpu

import "testing"

func fence(_ testing.TB, n int) []byte { return make([]byte, n) }
