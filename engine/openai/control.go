package openai

import (
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/llm"
)

// controlPaths change what the server holds. vLLM serves them in its development mode only.
var controlPaths = map[string]bool{
	"/sleep": true, "/wake_up": true, "/reset_prefix_cache": true,
	"/release_memory_occupation": true, "/resume_memory_occupation": true, "/flush_cache": true,
}

// loaded is the model, whatever its engine does now.
func (s *Server) loaded() (*model, error) {
	if s.broken != nil {
		return nil, s.broken
	}
	m := s.model.Load()
	if m == nil {
		return nil, unavailable("loading", "the model is loading")
	}
	return m, nil
}

// sleep is POST /sleep?level=1.
func (s *Server) sleep(w http.ResponseWriter, r *http.Request) error {
	m, err := s.loaded()
	if err != nil {
		return err
	}
	q := r.URL.Query()
	level := 1
	if text := q.Get("level"); text != "" {
		if level, err = strconv.Atoi(text); err != nil {
			return invalid("level", "invalid_type", "is %q, must be 1 or 2", text)
		}
	}
	if mode := q.Get("mode"); mode != "" && mode != "abort" {
		return invalid("mode", "unsupported_parameter", "is %q, only abort is supported", mode)
	}
	return answerEmpty(w, m.engine.Sleep(r.Context(), level))
}

// wakeUp is POST /wake_up?tags=weights&tags=kv_cache; without tags, all of it wakes.
func (s *Server) wakeUp(w http.ResponseWriter, r *http.Request) error {
	m, err := s.loaded()
	if err != nil {
		return err
	}
	return answerEmpty(w, m.engine.Wake(r.Context(), r.URL.Query()["tags"]...))
}

// isSleeping is GET /is_sleeping.
func (s *Server) isSleeping(w http.ResponseWriter, _ *http.Request) error {
	m, err := s.loaded()
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]bool{"is_sleeping": m.engine.State() == engine.Sleeping})
}

// resetPrefixCache is POST /reset_prefix_cache. Unlike vLLM's, it says when the cache was not
// reset.
func (s *Server) resetPrefixCache(w http.ResponseWriter, r *http.Request) error {
	m, err := s.loaded()
	if err != nil {
		return err
	}
	if text := r.URL.Query().Get("reset_running_requests"); text != "" && text != "false" {
		return invalid("reset_running_requests", "unsupported_parameter", "not supported: abort the requests first")
	}
	err = m.engine.ResetPrefixCache(r.Context())
	if errors.Is(err, llm.ErrBlocksInUse) {
		return &apiError{status: http.StatusConflict, kind: "conflict", code: "blocks_in_use", message: err.Error()}
	}
	return answerEmpty(w, err)
}

// answerEmpty is vLLM's answer to what has been done.
func answerEmpty(w http.ResponseWriter, err error) error {
	if param, ok := errors.AsType[*llm.ParamError](err); ok {
		return invalid(param.Field, "invalid_value", "is %v, must be %s", param.Value, param.Bound)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// version is GET /version.
func (s *Server) version(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, map[string]string{"version": s.options.Version})
}

// buildVersion is the version of this module in the program.
func buildVersion() string {
	const path = "github.com/enginetest/enginetest"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if info.Main.Path == path && info.Main.Version != "" {
		return info.Main.Version
	}
	for _, d := range info.Deps {
		if d.Path == path {
			return d.Version
		}
	}
	return "unknown"
}

// sameOrigin refuses a page of another site, whose browser asks no leave for a request without a
// body.
func (s *Server) sameOrigin(r *http.Request) error {
	origin := r.Header.Get("Origin")
	if origin == "" || s.originAllowed(origin) {
		return nil
	}
	return &apiError{
		status: http.StatusForbidden, kind: "invalid_request_error", code: "origin_not_allowed",
		message: fmt.Sprintf("the Origin is %q, which may not use this server (AllowedOrigins, --allowed-origins)", origin),
	}
}
