// Package proc starts commands whose descendants cannot get away: see Family and docs/families.md.
package proc

import (
	"crypto/rand"
	"encoding/hex"
	"syscall"
)

// envID holds the identities of the family and of the families it is inside of, outermost first,
// joined by "/". It is a mark for people and tools, and what is left when a supervisor is killed.
const envID = "ENGINETEST_FAMILY"

func newID() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails
	id := hex.EncodeToString(b[:])
	if outer, ok := syscall.Getenv(envID); ok {
		id = outer + "/" + id
	}
	return id
}
