package engine

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/engine/internal/tokenizer"
	"github.com/enginetest/enginetest/llm"
)

// text is a completion's text as it grows. A streamed text holds back as much as a stop string
// could still take away.
type text struct {
	decoder  *tokenizer.Stream
	stop     []string
	include  bool
	hold     int // bytes
	buf      []byte
	searched int // no stop string ends in (buf + what the decoder keeps)[:searched]
	sent     int
	stopped  bool
}

// newText starts the text that follows a prompt: in vocabularies of the SentencePiece kind the
// first word of a text has no space before it, the first of a continuation has. The decoder sees
// the prompt's end for that, as in vLLM; a run of special tokens there is shorter.
func newText(tok *tokenizer.Tokenizer, r rules, prompt []int32) *text {
	t := &text{decoder: tok.NewStream(r.skipSpecial), stop: r.stop, include: r.includeStop}
	for _, id := range prompt[max(0, len(prompt)-64):] {
		t.decoder.Push(id)
	}
	t.decoder.Flush()
	for _, s := range r.stop {
		if !t.include {
			t.hold = max(t.hold, len(s)-1)
		}
	}
	return t
}

// add appends a token's text. With search, a stop string in what is new ends the text: it is cut
// there and given. What the decoder keeps because a later token could change it is searched too: it
// is the text so far, and with byte fallback even a line end waits there.
func (t *text) add(id int32, search bool) (stop string, ok bool) {
	t.buf = append(t.buf, t.decoder.Push(id)...)
	if len(t.stop) == 0 {
		return "", false
	}
	all := t.buf
	if kept := t.decoder.Pending(); !strings.ContainsRune(kept, utf8.RuneError) { // else an unfinished character
		all = append(slices.Clip(t.buf), kept...)
	}
	at := -1
	for _, s := range t.stop {
		from := min(max(0, t.searched-len(s)+1), len(all))
		if i := strings.Index(string(all[from:]), s); search && i >= 0 && (at < 0 || from+i < at) {
			at, stop = from+i, s
		}
	}
	t.searched = len(all)
	if at < 0 {
		return "", false
	}
	if t.include {
		at += len(stop)
	}
	t.buf, t.stopped = all[:at], true
	return stop, true
}

// flush appends what the decoder still keeps: the bytes of a character that never became whole.
func (t *text) flush() {
	if !t.stopped {
		t.buf = append(t.buf, t.decoder.Flush()...)
	}
}

// next is the text that can be sent now: all of it when the completion is over.
func (t *text) next(all bool) string {
	end := len(t.buf)
	if !all {
		end = max(t.sent, end-t.hold)
		for end > t.sent && end < len(t.buf) && !utf8.RuneStart(t.buf[end]) {
			end--
		}
	}
	s := string(t.buf[t.sent:end])
	t.sent = end
	return s
}

func (t *text) String() string { return string(t.buf) }

// logprobsOf adds the tokens' texts.
func logprobsOf(lps []sample.Logprob, tok *tokenizer.Tokenizer) []llm.Logprob {
	out := make([]llm.Logprob, len(lps))
	for i, lp := range lps {
		out[i] = llm.Logprob{TokenID: lp.Token, Logprob: lp.Logprob, Rank: lp.Rank}
		if tok != nil {
			out[i].Token = tok.Decode([]int32{lp.Token}, false)
		}
	}
	return out
}

func itoa(id int32) string { return strconv.Itoa(int(id)) }
