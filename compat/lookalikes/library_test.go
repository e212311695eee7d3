package lookalikes

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/enginetest/enginetest/leakcheck"
)

// leftBy runs f in a scope and returns what is left of it.
func leftBy(t *testing.T, f func()) []leakcheck.Finding {
	s := leakcheck.NewScope(t.Name(), leakcheck.Patience(10*time.Millisecond))
	s.Do(f)
	err := s.Gone(context.Background())
	e, ok := errors.AsType[*leakcheck.Error](err)
	if !ok {
		t.Fatalf("nothing was found: %v", err)
	}
	return e.Findings
}

// one checks that a finding is alone, and that the Allow it suggests accepts the leak.
func one(t *testing.T, found []leakcheck.Finding, library string) {
	t.Helper()
	if len(found) != 1 || !strings.Contains(found[0].Detail, "all of "+library) || len(found[0].Also) == 0 {
		t.Errorf("%d findings: %v", len(found), &leakcheck.Error{Findings: found})
	}
}

// TestOneFindingForAClient: the goroutines of one client that was not closed are one finding.
func TestOneFindingForAClient(t *testing.T) {
	if *leak || *parallel {
		t.Skip("it plants a leak of its own")
	}
	e := &engine{weights: make([]byte, 4096)}
	lis := serve(t, e)
	one(t, leftBy(t, func() {
		_, c := dial(t, lis)
		check(t, c)
	}), "google.golang.org/grpc")
	s := httptest.NewServer(handler(e))
	t.Cleanup(s.Close)
	one(t, leftBy(t, func() {
		get(t, &http.Client{Transport: &http.Transport{}}, s.URL+"/generate")
	}), "net/http")
}
