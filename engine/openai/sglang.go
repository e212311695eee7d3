package openai

import (
	"net/http"

	"github.com/enginetest/enginetest/engine"
)

// SGLang's names for what vLLM has under others.
func (s *Server) sglangRoutes() map[string]route {
	return map[string]route{
		"/health_generate":           {http.MethodGet, s.health},
		"/flush_cache":               {http.MethodGet + ", " + http.MethodPost, s.resetPrefixCache},
		"/release_memory_occupation": {http.MethodPost, s.releaseMemory},
		"/resume_memory_occupation":  {http.MethodPost, s.resumeMemory},
	}
}

type memoryRequest struct {
	Tags []string `json:"tags"`
}

// releaseMemory is POST /release_memory_occupation: all of the memory, or nothing.
func (s *Server) releaseMemory(w http.ResponseWriter, r *http.Request) error {
	m, q, err := s.readMemory(w, r)
	if err != nil {
		return err
	}
	if len(q.Tags) > 0 {
		return invalid("tags", "unsupported_parameter", "not supported: everything sleeps")
	}
	return answerEmpty(w, m.engine.Sleep(r.Context(), 1))
}

// resumeMemory is POST /resume_memory_occupation.
func (s *Server) resumeMemory(w http.ResponseWriter, r *http.Request) error {
	m, q, err := s.readMemory(w, r)
	if err != nil {
		return err
	}
	return answerEmpty(w, m.engine.Wake(r.Context(), q.Tags...))
}

func (s *Server) readMemory(w http.ResponseWriter, r *http.Request) (*model, *memoryRequest, error) {
	m, err := s.loaded()
	if err != nil {
		return nil, nil, err
	}
	var q memoryRequest
	done, err := s.readRequest(w, r, m, &q)
	if err != nil {
		return nil, nil, err
	}
	done()
	return m, &q, nil
}

// sglang writes the gauges that SGLang's routers read.
func (p *metricsPage) sglang(st engine.Stats, used float64) {
	for _, x := range []struct {
		name, help string
		value      any
	}{
		{"sglang:num_running_reqs", "Sequences in the current step.", st.Running},
		{"sglang:num_queue_reqs", "Sequences that wait for a place in a step.", st.Waiting},
		{"sglang:token_usage", "Share of the KV blocks that sequences hold, 0 to 1.", used},
	} {
		p.head(x.name, "gauge", x.help)
		p.sample(x.name, "", x.value)
	}
}
