//go:build linux

package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestChildSmoke(t *testing.T) {
	began := time.Now()
	e := openTiny(t, Config{Core: ChildProcess})
	t.Log("open", time.Since(began))
	g := loadGolden(t)
	outs, err := e.Generate(context.Background(), g.requests()...)
	require.NoError(t, err)
	for i, o := range outs {
		assert.Equal(t, g.Prompts[i].Greedy, o.Completions[0].TokenIDs)
	}
	t.Log(e.Stats(), e.Holdings())
	require.NoError(t, e.Shutdown(t.Context()))
	t.Log("\n" + e.ShutdownReport().String())
}
