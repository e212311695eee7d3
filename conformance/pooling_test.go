package conformance_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/conformance"
	"github.com/enginetest/enginetest/conformance/internal/bundled"
	"github.com/enginetest/enginetest/llm"
)

// TestPooling runs the suite on engines that embed, that classify and that score. What they are not
// for is listed, and fails nothing.
func TestPooling(t *testing.T) {
	embeds := []conformance.Capability{
		conformance.Embeddings, conformance.Scores, conformance.Pooling, conformance.NormalisedVectors,
		conformance.ShorterEmbeddings,
	}
	for _, c := range []struct {
		name    string
		task    llm.Task
		classes int
		claims  []conformance.Capability
		lacks   string // properties
	}{
		{"embeds", llm.TaskEmbed, 0, embeds, "classes"},
		{"classifies", llm.TaskClassify, 3, []conformance.Capability{conformance.Classes, conformance.Pooling}, "embeddings|scores"},
		{"scores", llm.TaskClassify, 1, []conformance.Capability{conformance.Classes, conformance.Scores}, "embeddings"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := bundled.PoolingConfig(t.TempDir(), c.task, c.classes)
			require.NoError(t, err)
			report := conformance.Run(t, bundled.Open(cfg), append(bundled.ServerOptions(), conformance.Claims(c.claims...),
				conformance.Only(regexp.MustCompile("^pooling/|^same answer/greedy twice|^sampler/top-k")))...)
			for _, r := range report.Results {
				want := conformance.Passes
				if !strings.HasPrefix(r.Property, "pooling/") && !strings.HasPrefix(r.Property, "lifecycle/") ||
					regexp.MustCompile(c.lacks).MatchString(r.Property) {
					want = conformance.Lacks
				}
				assert.Equal(t, want, r.Verdict, "%s: %s", r.Property, r.Detail)
			}
		})
	}
}
