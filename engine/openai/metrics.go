package openai

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/llm"
)

// metrics is GET /metrics, in Prometheus' text format. What vLLM measures too has vLLM's name,
// labels and buckets, so that its dashboards and routers work; the rest is enginetest's.
func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) error {
	page := &metricsPage{labels: fmt.Sprintf("engine=\"0\",model_name=%q", s.name)}
	m := s.model.Load()
	var st engine.Stats
	l := newLatencies(0)
	if m != nil {
		st, l = m.engine.Stats(), m.latencies
	}
	if s.options.Latency != (Latency{}) { // what has been computed but not sent runs, for the client
		st.Running = max(st.Running, l.total()-st.Waiting)
	}
	page.counters(st)
	page.sleepState(st)
	for _, h := range []*histogram{
		l.firstToken, l.interToken, l.perToken, l.whole, l.prompt, l.output, l.choices, l.maxTokens,
	} {
		h.write(&page.b, page.labels)
	}
	page.finished(l)
	if m != nil {
		page.cacheConfig(m.engine.Config(), st)
	}
	page.loraInfo(s.lora, l)
	page.state(st.State)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(page.b.String()))
	return nil
}

// metricsPage is the text that /metrics answers.
type metricsPage struct {
	b      strings.Builder
	labels string // of every sample
}

func (p *metricsPage) head(name, kind, help string) { writeHead(&p.b, name, kind, help) }

// sample writes a value; labels come behind those of every sample.
func (p *metricsPage) sample(name, labels string, value any) {
	if labels != "" {
		labels = "," + labels
	}
	fmt.Fprintf(&p.b, "%s{%s%s} %v\n", name, p.labels, labels, value)
}

func (p *metricsPage) counters(st engine.Stats) {
	used := 0.0
	if st.KVBlocks > 0 {
		used = float64(st.KVBlocksUsed) / float64(st.KVBlocks)
	}
	for _, x := range []struct {
		name, kind, help string
		value            any
	}{
		{"vllm:num_requests_running", "gauge", "Sequences in the current step.", st.Running},
		{"vllm:num_requests_waiting", "gauge", "Sequences that wait for a place in a step.", st.Waiting},
		{"vllm:kv_cache_usage_perc", "gauge", "Share of the KV blocks that sequences hold, 0 to 1.", used},
		{"vllm:num_preemptions_total", "counter", "Sequences that lost their KV blocks.", st.Preemptions},
		{"vllm:prompt_tokens_total", "counter", "Prompt tokens of the requests that were started.", st.PromptTokens},
		{"vllm:prompt_tokens_cached_total", "counter", "Prompt tokens found in a cache.", st.PrefixHits},
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
		p.head(x.name, x.kind, x.help)
		p.sample(x.name, "", x.value)
	}
	p.sglang(st, used)
}

// sleepState has a sample per state; the value 1 is at the state that the engine is in.
func (p *metricsPage) sleepState(st engine.Stats) {
	const name = "vllm:engine_sleep_state"
	p.head(name, "gauge", "1 for the state that the engine is in: awake, weights on the host, nothing kept.")
	for level, state := range []string{"awake", "weights_offloaded", "discard_all"} {
		p.sample(name, fmt.Sprintf("sleep_state=%q", state), oneIf(st.SleepLevel == level))
	}
}

// finished counts outputs by the reason why they ended.
func (p *metricsPage) finished(l *latencies) {
	const name = "vllm:request_success_total"
	p.head(name, "counter", "Outputs that ended, by reason.")
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, why := range []llm.FinishReason{
		llm.FinishStop, llm.FinishLength, llm.FinishAbort, llm.FinishError,
	} {
		p.sample(name, fmt.Sprintf("finished_reason=%q", why), l.finished[why])
	}
}

// cacheConfig says in its labels how the KV cache is made.
func (p *metricsPage) cacheConfig(cfg engine.Config, st engine.Stats) {
	const name = "vllm:cache_config_info"
	p.head(name, "gauge", "How the KV cache is made, in the labels.")
	prefix := "True"
	if cfg.DisablePrefixCache {
		prefix = "False"
	}
	p.sample(name, fmt.Sprintf("block_size=\"%d\",enable_prefix_caching=%q,gpu_memory_utilization=\"%v\",num_gpu_blocks=\"%d\"",
		cfg.BlockSize, prefix, cfg.MemoryUtilization, st.KVBlocks), 1)
}

// loraInfo lists the names that are in use; its value is the time of the last change.
func (p *metricsPage) loraInfo(modules []loraModule, l *latencies) {
	if len(modules) == 0 {
		return
	}
	const name = "vllm:lora_requests_info"
	p.head(name, "gauge", "The LoRA names that requests have, in the labels; the value is the time of the last change.")
	running, waiting, changed := l.names(modules)
	fmt.Fprintf(&p.b, "%s{max_lora=\"%d\",running_lora_adapters=%q,waiting_lora_adapters=%q} %.3f\n",
		name, len(modules), running, waiting, float64(changed.UnixMilli())/1000)
}

func (p *metricsPage) state(is engine.State) {
	const name = "enginetest:state"
	p.head(name, "gauge", "1 for the state that the engine is in.")
	for i := engine.Starting; i <= engine.Failed; i++ {
		p.sample(name, fmt.Sprintf("state=%q", i.String()), oneIf(i == is))
	}
}

func oneIf(is bool) int {
	if is {
		return 1
	}
	return 0
}
