package openai

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/enginetest/enginetest/llm"
)

// The endpoints of pooling models: OpenAI's /v1/embeddings, and /classify, /score and /rerank as
// vLLM has them.

func (s *Server) poolingRoutes() map[string]route {
	return map[string]route{
		"/v1/embeddings": {http.MethodPost, s.embeddings},
		"/classify":      {http.MethodPost, s.classify},
		"/score":         {http.MethodPost, s.score},
		"/v1/score":      {http.MethodPost, s.score},
		"/rerank":        {http.MethodPost, s.rerank},
		"/v1/rerank":     {http.MethodPost, s.rerank},
		"/v2/rerank":     {http.MethodPost, s.rerank},
	}
}

// poolingPaths are those outside /v1.
var poolingPaths = map[string]bool{"/classify": true, "/score": true, "/rerank": true, "/v2/rerank": true}

type embeddingRequest struct {
	Model          *string `json:"model"`
	Input          prompts `json:"input"`
	EncodingFormat string  `json:"encoding_format"`
	Dimensions     *int    `json:"dimensions"`
	UseActivation  *bool   `json:"use_activation"`
}

type classifyRequest struct {
	Model         *string `json:"model"`
	Input         prompts `json:"input"`
	UseActivation *bool   `json:"use_activation"`
}

type scoreRequest struct {
	Model *string `json:"model"`
	Text1 texts   `json:"text_1"`
	Text2 texts   `json:"text_2"`
}

type rerankRequest struct {
	Model     *string `json:"model"`
	Query     string  `json:"query"`
	Documents texts   `json:"documents"`
	TopN      int     `json:"top_n"`
}

// begin reads a request for the served model. done ends its turn.
func (s *Server) begin(w http.ResponseWriter, r *http.Request, q any, name **string) (m *model, done func(), err error) {
	if m, err = s.ready(); err != nil {
		return nil, nil, err
	}
	if done, err = s.readRequest(w, r, m, q); err != nil {
		return nil, nil, err
	}
	if err := s.checkModel(*name); err != nil {
		done()
		return nil, nil, err
	}
	return m, done, nil
}

// embeddings is POST /v1/embeddings.
func (s *Server) embeddings(w http.ResponseWriter, r *http.Request) error {
	var q embeddingRequest
	m, done, err := s.begin(w, r, &q, &q.Model)
	if err != nil {
		return err
	}
	defer done()
	params := llm.PoolingParams{Task: llm.TaskEmbed, UseActivation: q.UseActivation}
	if q.Dimensions != nil {
		if *q.Dimensions < 1 {
			return invalid("dimensions", "invalid_value", "is %d, must be at least 1", *q.Dimensions)
		}
		params.Dimensions = *q.Dimensions
	}
	show := func(x []float32) any { return x }
	switch q.EncodingFormat {
	case "", "float":
	case "base64":
		show = base64Floats
	default:
		return invalid("encoding_format", "invalid_value", "is %q, must be float or base64", q.EncodingFormat)
	}
	id := newID("embd-")
	outs, err := s.pool(r, m, id, q.Input, params)
	if err != nil {
		return err
	}
	return s.writeList(w, id, outs, func(i int, x []float32) map[string]any {
		return map[string]any{"index": i, "object": "embedding", "embedding": show(x)}
	})
}

// base64Floats is what OpenAI's clients ask for: little-endian float32.
func base64Floats(x []float32) any {
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return base64.StdEncoding.EncodeToString(b)
}

// classify is POST /classify.
func (s *Server) classify(w http.ResponseWriter, r *http.Request) error {
	var q classifyRequest
	m, done, err := s.begin(w, r, &q, &q.Model)
	if err != nil {
		return err
	}
	defer done()
	id := newID("classify-")
	outs, err := s.pool(r, m, id, q.Input, llm.PoolingParams{Task: llm.TaskClassify, UseActivation: q.UseActivation})
	if err != nil {
		return err
	}
	labels := m.engine.PoolingInfo().Labels
	return s.writeList(w, id, outs, func(i int, x []float32) map[string]any {
		best := slices.Index(x, slices.Max(x))
		return map[string]any{"index": i, "label": labels[best], "probs": x, "num_classes": len(x)}
	})
}

// pool runs one request per input.
func (s *Server) pool(r *http.Request, m *model, id string, input prompts,
	params llm.PoolingParams,
) ([]llm.PoolingOutput, error) {
	if len(input) == 0 {
		return nil, invalid("input", "missing_required_parameter", "it is missing or empty")
	}
	reqs := make([]llm.PoolingRequest, len(input))
	for i, p := range input {
		reqs[i] = llm.PoolingRequest{
			Prompt: p.text, PromptTokenIDs: p.ids, Client: s.clientOf(r, id), Pooling: params,
		}
	}
	outs, err := m.engine.Pool(r.Context(), reqs...)
	if param, ok := errors.AsType[*llm.ParamError](err); ok && isPrompt(param.Field) {
		return nil, invalid("input", "invalid_value", "%v", err)
	}
	return outs, err
}

// isPrompt reports whether a field of the engine's is what the API calls the input.
func isPrompt(field string) bool {
	return strings.HasPrefix(field, "Prompt") || strings.HasPrefix(field, "the prompt")
}

// clientOf names the client of a request, which is a client of its own when it has no name.
func (s *Server) clientOf(r *http.Request, id string) string {
	return cmp.Or(s.options.ClientOf(r), id)
}

// score is POST /score: each text_1 with its text_2, or one text_1 with all of them.
func (s *Server) score(w http.ResponseWriter, r *http.Request) error {
	var q scoreRequest
	m, done, err := s.begin(w, r, &q, &q.Model)
	if err != nil {
		return err
	}
	defer done()
	switch {
	case len(q.Text1) == 0:
		return invalid("text_1", "missing_required_parameter", "it is missing or empty")
	case len(q.Text2) == 0:
		return invalid("text_2", "missing_required_parameter", "it is missing or empty")
	case len(q.Text1) > 1 && len(q.Text1) != len(q.Text2):
		return invalid("text_1", "invalid_value", "has %d texts, must have 1 or as many as text_2 (%d)",
			len(q.Text1), len(q.Text2))
	}
	pairs := make([]llm.TextPair, len(q.Text2))
	for i, text := range q.Text2 {
		pairs[i] = llm.TextPair{Query: q.Text1[min(i, len(q.Text1)-1)], Text: text}
	}
	id := newID("score-")
	outs, err := m.engine.ScorePairs(r.Context(), s.clientOf(r, id), pairs...)
	if err != nil {
		return err
	}
	return s.writeList(w, id, outs, func(i int, x []float32) map[string]any {
		return map[string]any{"index": i, "object": "score", "score": x[0]}
	})
}

// rerank is POST /rerank: the documents in the order of their relevance to the query.
func (s *Server) rerank(w http.ResponseWriter, r *http.Request) error {
	var q rerankRequest
	m, done, err := s.begin(w, r, &q, &q.Model)
	if err != nil {
		return err
	}
	defer done()
	switch {
	case q.Query == "":
		return invalid("query", "missing_required_parameter", "it is missing or empty")
	case len(q.Documents) == 0:
		return invalid("documents", "missing_required_parameter", "it is missing or empty")
	case q.TopN < 0:
		return invalid("top_n", "invalid_value", "is %d, must be at least 0 (all of them)", q.TopN)
	}
	pairs := make([]llm.TextPair, len(q.Documents))
	for i, text := range q.Documents {
		pairs[i] = llm.TextPair{Query: q.Query, Text: text}
	}
	id := newID("rerank-")
	outs, err := m.engine.ScorePairs(r.Context(), s.clientOf(r, id), pairs...)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]any{
		"id": id, "model": s.name, "results": ranked(q.Documents, outs, q.TopN), "usage": poolingUsage(outs),
	})
}

// ranked lists the n most relevant documents, best first; 0 lists all.
func ranked(documents []string, outs []llm.PoolingOutput, n int) []map[string]any {
	order := make([]int, len(outs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(outs[b].Data[0], outs[a].Data[0]) })
	if n > 0 {
		order = order[:min(n, len(order))]
	}
	results := []map[string]any{}
	for _, i := range order {
		results = append(results, map[string]any{
			"index": i, "document": map[string]string{"text": documents[i]}, "relevance_score": outs[i].Data[0],
		})
	}
	return results
}

// writeList answers with an entry per output.
func (s *Server) writeList(w http.ResponseWriter, id string, outs []llm.PoolingOutput,
	entry func(i int, x []float32) map[string]any,
) error {
	data := []map[string]any{}
	for i, out := range outs {
		data = append(data, entry(i, out.Data))
	}
	return writeJSON(w, http.StatusOK, map[string]any{
		"id": id, "object": "list", "created": time.Now().Unix(), "model": s.name, "data": data,
		"usage": poolingUsage(outs),
	})
}

func poolingUsage(outs []llm.PoolingOutput) map[string]any {
	n := 0
	for _, out := range outs {
		n += len(out.PromptTokenIDs)
	}
	return map[string]any{"prompt_tokens": n, "total_tokens": n}
}
