package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
)

// promptEmbeds is the engine's copy of a request's embeddings, which it keeps until the request is
// over: a preempted sequence is computed from them again. It has an owner of its own in the ledger.
type promptEmbeds struct {
	rows [][]float32
	salt []byte // tells prefixes in the KV cache apart, which have no tokens to be known by

	ledger  *ledger.Ledger // nil: not entered
	holding ledger.ID
}

const promptEmbedsOwner = "prompt_embeds"

// checkEmbeds copies a request's embeddings; nil when it has none.
func (p *inputProcessor) checkEmbeds(q *Request) (*promptEmbeds, error) {
	rows, most := q.PromptEmbeds, p.cfg.MaxModelLen-1
	if rows == nil {
		return nil, nil
	}
	if p.embedding == 0 {
		return nil, &llm.UnsupportedError{
			Field: "PromptEmbeds", Why: "device " + p.cfg.Device + " computes prompts of tokens only",
			Advice: "use the CPU device, or PromptTokenIDs",
		}
	}
	switch {
	case q.PromptTokenIDs != nil:
		return nil, paramError("PromptTokenIDs", fmt.Sprintf("a list of %d", len(q.PromptTokenIDs)), "left out with PromptEmbeds")
	case q.Prompt != "":
		return nil, paramError("Prompt", "a text", `"" with PromptEmbeds`)
	case q.Sampling.PromptLogprobs != nil:
		return nil, paramError("PromptLogprobs", *q.Sampling.PromptLogprobs, "left out with PromptEmbeds, which are no tokens")
	case len(rows) == 0:
		return nil, paramError("PromptEmbeds", "empty", "at least one row")
	case len(rows) > most:
		return nil, fmt.Errorf("%w: %d embeddings, at most %d with MaxModelLen %d and one token of output",
			llm.ErrPromptTooBig, len(rows), most, most+1)
	}
	for i, row := range rows {
		if len(row) != p.embedding {
			return nil, paramError(fmt.Sprintf("PromptEmbeds[%d]", i), fmt.Sprintf("a row of %d", len(row)),
				fmt.Sprintf("one of %d numbers, the model's hidden size", p.embedding))
		}
		for j, x := range row {
			if f := float64(x); math.IsNaN(f) || math.IsInf(f, 0) {
				return nil, paramError(fmt.Sprintf("PromptEmbeds[%d][%d]", i, j), f, "finite")
			}
		}
	}
	return copyEmbeds(rows, p.embedding), nil
}

// copyEmbeds copies rows into memory of their own.
func copyEmbeds(rows [][]float32, width int) *promptEmbeds {
	e := &promptEmbeds{rows: make([][]float32, len(rows))}
	all, hash := make([]float32, len(rows)*width), sha256.New()
	bytes := make([]byte, 0, 4*width)
	for i, row := range rows {
		e.rows[i] = all[i*width : (i+1)*width : (i+1)*width]
		copy(e.rows[i], row)
		bytes = bytes[:0]
		for _, x := range row {
			bytes = binary.LittleEndian.AppendUint32(bytes, math.Float32bits(x))
		}
		hash.Write(bytes)
	}
	e.salt = hash.Sum(nil)
	return e
}

// bytes is what the embeddings take; 0 for none.
func (e *promptEmbeds) bytes() int64 {
	if e == nil {
		return 0
	}
	return embedBytes(e.rows)
}

func embedBytes(rows [][]float32) int64 {
	if len(rows) == 0 {
		return 0
	}
	return 4 * int64(len(rows)) * int64(len(rows[0]))
}

// enter puts the embeddings into the ledger.
func (e *promptEmbeds) enter(l *ledger.Ledger) {
	if e == nil {
		return
	}
	e.ledger = l
	e.holding = l.Add(ledger.Holding{Owner: promptEmbedsOwner, Kind: "heap", Device: "host", Bytes: e.bytes()})
}

// release frees the embeddings. A second call has no effect.
func (e *promptEmbeds) release() {
	if e == nil || e.ledger == nil {
		return
	}
	_ = e.ledger.Remove(e.holding) // it is live: enter added it
	e.rows, e.ledger = nil, nil
}
