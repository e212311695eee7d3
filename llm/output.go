package llm

// Request is one prompt: a text, token ids, or embeddings.
type Request struct {
	ID             string // for Abort and logs; "" gets a fresh one
	Prompt         string
	PromptTokenIDs []int32 // used instead of Prompt when not nil
	// PromptEmbeds is used instead of either when not nil: a row per position, as the model's embedding
	// layer returns them for tokens. Such a prompt has no token ids: penalties and n-grams know its
	// output only, and it has no log-probabilities.
	PromptEmbeds [][]float32
	Client       string // whom it is for: clients share the engine evenly; "" makes each call a client of its own
	Sampling     SamplingParams
}

// FinishReason says why a completion ended.
type FinishReason string

// The finish reasons.
const (
	FinishStop   FinishReason = "stop"   // EOS, a stop id or a stop string
	FinishLength FinishReason = "length" // MaxTokens or MaxModelLen
	FinishAbort  FinishReason = "abort"  // Abort, a cancelled context, or a shutdown
	FinishError  FinishReason = "error"  // the request or the whole engine failed; the error of Generate says why
)

// Output is what a request gave.
type Output struct {
	RequestID      string
	Prompt         string
	PromptTokenIDs []int32
	PromptLogprobs [][]Logprob  // one per prompt token, the first nil; nil when not asked for
	Completions    []Completion // SamplingParams.N of them
	CachedTokens   int          // prompt tokens that came out of the prefix cache
}

// Completion is one output of a request.
type Completion struct {
	Index             int
	TokenIDs          []int32 // with the EOS or stop id that ended it
	Text              string
	FinishReason      FinishReason
	StopReason        string      // the stop string or stop id that ended it; "" for EOS and length
	CumulativeLogprob float64     // 0 when no log-probabilities were asked for, or logits
	Logprobs          [][]Logprob // one per token: the sampled one and the most likely, best first
}

// Logprob is a token's log-probability at one position: over the whole vocabulary and before any
// sampling parameter, unless SamplingParams.LogprobsMode asks for something else.
type Logprob struct {
	TokenID int32
	Logprob float32 // or its logit
	Rank    int     // 1 is the most likely token
	Token   string  // its text; "" without a tokenizer
}

// Delta is what one step added to one completion of a streamed request. The last one of a
// completion has a FinishReason.
type Delta struct {
	Request      int // of those that are streamed together
	Index        int // of the completion
	TokenIDs     []int32
	Text         string
	Logprobs     [][]Logprob
	FinishReason FinishReason
	StopReason   string
	CachedTokens int // with a FinishReason: prompt tokens that came out of the prefix cache
}

// Message is one turn of a conversation.
type Message struct {
	Role    string `json:"role"` // "system", "user" or "assistant"
	Content string `json:"content"`
}
