package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"

	"github.com/enginetest/enginetest/llm"
)

type completionRequest struct {
	common
	Prompt   prompts `json:"prompt"`
	Logprobs *int    `json:"logprobs"`
}

// prompts are a text, token ids, or a list of either.
type prompts []prompt

type prompt struct {
	text string
	ids  []int32 // instead of the text when not nil
}

func (p *prompts) UnmarshalJSON(data []byte) error {
	if one, ok := readPrompt(data); ok {
		*p = prompts{one}
		return nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(data, &list); err != nil {
		return errors.New("want a text, token ids, or a list of either")
	}
	for i, raw := range list {
		one, ok := readPrompt(raw)
		if !ok {
			return fmt.Errorf("item %d is neither a text nor token ids", i)
		}
		*p = append(*p, one)
	}
	return nil
}

func readPrompt(data []byte) (prompt, bool) {
	var text *string
	if json.Unmarshal(data, &text) == nil && text != nil {
		return prompt{text: *text}, true
	}
	var ids tokenIDs
	err := json.Unmarshal(data, &ids)
	return prompt{ids: ids}, err == nil && ids != nil
}

// completions is POST /v1/completions.
func (s *Server) completions(w http.ResponseWriter, r *http.Request) error {
	m, err := s.ready()
	if err != nil {
		return err
	}
	var q completionRequest
	done, err := s.readRequest(w, r, m, &q)
	if err != nil {
		return err
	}
	defer done()
	if err := s.checkModel(q.Model); err != nil {
		return err
	}
	if len(q.Prompt) == 0 {
		return invalid("prompt", "missing_required_parameter", "it is missing or empty")
	}
	params, err := q.params(16)
	if err != nil {
		return err
	}
	if q.Logprobs != nil {
		if err := checkLogprobs("logprobs", *q.Logprobs); err != nil {
			return err
		}
		params.Logprobs = q.Logprobs
	}
	j := &job{s: s, m: m, common: &q.common, id: newID("cmpl-"), object: "text_completion", choice: textChoice}
	if err := j.checkSeqs(len(q.Prompt)); err != nil {
		return err
	}
	for _, p := range q.Prompt {
		ids := p.ids
		if ids == nil {
			if ids, err = m.encode(r.Context(), p.text, true); err != nil {
				return err
			}
		}
		if err := j.add(ids, params); err != nil {
			return err
		}
	}
	done()
	return j.run(w, r)
}

// textChoice is one entry of "choices".
func textChoice(j *job, p *piece, stream bool) map[string]any {
	c := map[string]any{"index": p.index, "text": p.text, "finish_reason": p.finish(), "logprobs": nil}
	if p.logprobs != nil {
		c["logprobs"] = textLogprobs(p, stream)
	}
	p.extras(j, c)
	return c
}

// textLogprobs is the shape of /v1/completions. Offsets are in characters, from the begin of the
// completion.
func textLogprobs(p *piece, _ bool) map[string]any {
	tokens, chosen, tops, offsets := []string{}, []float64{}, []map[string]float64{}, []int{}
	for i, lps := range p.logprobs {
		lp := sampled(lps, p.ids[i])
		tokens, chosen, offsets = append(tokens, lp.Token), append(chosen, finite(lp)), append(offsets, *p.offset)
		*p.offset += len([]rune(lp.Token))
		top := map[string]float64{}
		for _, x := range lps {
			if _, ok := top[x.Token]; !ok { // parts of characters may print alike: the likeliest stays
				top[x.Token] = finite(x)
			}
		}
		tops = append(tops, top)
	}
	return map[string]any{"tokens": tokens, "token_logprobs": chosen, "top_logprobs": tops, "text_offset": offsets}
}

// sampled finds the token that was chosen among its position's log-probabilities.
func sampled(lps []llm.Logprob, id int32) llm.Logprob {
	for _, lp := range lps {
		if lp.TokenID == id {
			return lp
		}
	}
	return llm.Logprob{TokenID: id, Logprob: leastLogprob}
}

const leastLogprob = -9999 // stands for −∞, which JSON lacks; as in vLLM

// finite returns what JSON can hold of a log-probability, or of a logit.
func finite(lp llm.Logprob) float64 {
	return float64(min(max(lp.Logprob, leastLogprob), math.MaxFloat32))
}
