package leakcheck

import (
	"expvar"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var publications atomic.Int64

// What is published by expvar stays there, so the advice is not to remove it.
func TestExpvar(t *testing.T) {
	kept := &struct{ e *engine }{newEngine("published")}
	ref := Track("engine", kept.e, brief)
	expvar.Publish(fmt.Sprintf("leakcheck test %d", publications.Add(1)), expvar.Func(func() any { return kept.e.name }))
	err := ref.Released(ctx)
	var found *Error
	require.ErrorAs(t, err, &found)
	require.Len(t, found.Findings, 1)
	assert.Contains(t, found.Findings[0].Detail, "global  expvar.vars")
	assert.Contains(t, found.Findings[0].Note, "expvar cannot unpublish: publish once in the process")
	kept.e = nil
	require.NoError(t, ref.Released(ctx))
}
