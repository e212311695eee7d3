package openai

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/enginetest/enginetest/engine"
)

// metrics is GET /metrics, in Prometheus' text format. What vLLM measures too has vLLM's name, so
// that its dashboards work; the rest is enginetest's.
func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) error {
	var st engine.Stats
	state := engine.Starting
	if m := s.model.Load(); m != nil {
		st = m.engine.Stats()
		state = st.State
	}
	used := 0.0
	if st.KVBlocks > 0 {
		used = float64(st.KVBlocksUsed) / float64(st.KVBlocks)
	}
	label := fmt.Sprintf("model_name=%q", s.name)
	var b strings.Builder
	for _, x := range []struct {
		name, kind, help string
		value            any
	}{
		{"vllm:num_requests_running", "gauge", "Sequences in the current step.", st.Running},
		{"vllm:num_requests_waiting", "gauge", "Sequences that wait for a place in a step.", st.Waiting},
		{"vllm:kv_cache_usage_perc", "gauge", "Share of the KV blocks that sequences hold, 0 to 1.", used},
		{"vllm:num_preemptions_total", "counter", "Sequences that lost their KV blocks.", st.Preemptions},
		{"vllm:prompt_tokens_total", "counter", "Prompt tokens of the requests that were started.", st.PromptTokens},
		{"vllm:generation_tokens_total", "counter", "Tokens that were sampled.", st.OutputTokens},
		{
			"vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
			st.PrefixQueries,
		},
		{"vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.", st.PrefixHits},
		{"enginetest:requests_finished_total", "counter", "Requests that ended by stop or length.", st.Finished},
		{"enginetest:requests_aborted_total", "counter", "Requests that were cut short.", st.Aborted},
		{"enginetest:requests_failed_total", "counter", "Requests that failed.", st.Errored},
		{"enginetest:steps_total", "counter", "Steps of the engine.", st.Steps},
		{"enginetest:kv_blocks", "gauge", "KV blocks in all.", st.KVBlocks},
		{"enginetest:kv_blocks_used", "gauge", "KV blocks that sequences hold.", st.KVBlocksUsed},
	} {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n%s{%s} %v\n", x.name, x.help, x.name, x.kind, x.name, label,
			x.value)
	}
	const name = "enginetest:state"
	fmt.Fprintf(&b, "# HELP %s 1 for the state that the engine is in.\n# TYPE %s gauge\n", name, name)
	for i := engine.Starting; i <= engine.Failed; i++ {
		is := 0
		if i == state {
			is = 1
		}
		fmt.Fprintf(&b, "%s{%s,state=%q} %d\n", name, label, i.String(), is)
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(b.String()))
	return nil
}
