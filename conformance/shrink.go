package conformance

import (
	"fmt"
	"slices"
	"time"

	"github.com/enginetest/enginetest/llm"
)

// Bounds of the search for a smaller example: what is found when they are reached is shown.
const (
	shrinkTries = 60
	shrinkTime  = 10 * time.Second
)

// holds checks requests with fails, which describes how the property fails with them, "" when it
// holds. A failure is shown with the fewest and shortest requests that still fail.
func (c *check) holds(reqs []llm.Request, fails func([]llm.Request) (string, error)) error {
	found, err := fails(reqs)
	if err != nil || found == "" {
		return err
	}
	began, tries := time.Now(), 0
	try := func(smaller []llm.Request) bool {
		if tries++; tries > shrinkTries || time.Since(began) > shrinkTime || c.Err() != nil {
			return false
		}
		text, err := fails(smaller)
		if err != nil || text == "" {
			return false
		}
		reqs, found = smaller, text
		return true
	}
	for i := 0; i < len(reqs) && len(reqs) > 1; {
		if !try(slices.Delete(slices.Clone(reqs), i, i+1)) {
			i++
		}
	}
	for i := range reqs {
		for shrinkOne(reqs, i, try) {
		}
	}
	with := "with this request alone"
	if len(reqs) > 1 {
		with = fmt.Sprintf("with these %d requests", len(reqs))
	}
	return fmt.Errorf("%s\nsmallest example found, %s:\n%s", found, with, requests(reqs))
}

// shrinkOne tries shorter forms of one request.
func shrinkOne(reqs []llm.Request, i int, try func([]llm.Request) bool) bool {
	for _, shorter := range shorterForms(reqs[i]) {
		next := slices.Clone(reqs)
		next[i] = shorter
		if try(next) {
			return true
		}
	}
	return false
}

func shorterForms(q llm.Request) (out []llm.Request) {
	if n := q.Sampling.MaxTokens; n > 1 {
		half := q
		half.Sampling.MaxTokens = n / 2
		half.Sampling.MinTokens = min(q.Sampling.MinTokens, n/2)
		out = append(out, half)
	}
	if n := len(q.PromptTokenIDs); n > 1 {
		half := q
		half.PromptTokenIDs = q.PromptTokenIDs[:n/2]
		out = append(out, half)
	}
	if text := []rune(q.Prompt); len(text) > 4 {
		half := q
		half.Prompt = string(text[:len(text)/2])
		out = append(out, half)
	}
	return out
}
