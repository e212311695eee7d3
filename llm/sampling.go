package llm

// SamplingParams say how a request's tokens are chosen. The zero value is greedy, 16 tokens. Names
// and ranges are vLLM's; a value outside its range is a [ParamError] that names the field and the
// bound.
type SamplingParams struct {
	MaxTokens int // ≥ 1; 0 is 16
	MinTokens int // 0 … MaxTokens: EOS and stop ids are masked until then
	N         int // outputs per prompt, 1 … 16384; 0 is 1

	Temperature   float64 // 0 … 2; 0 (and anything < 1e-5) is greedy
	TopK          int     // ≥ 1; 0 and -1 are off
	TopP          float64 // (0, 1]; 0 is off
	MinP          float64 // [0, 1]
	TypicalP      float64 // (0, 1]; 0 is off
	EpsilonCutoff float64 // [0, 1)
	Seed          *int64  // nil: Config.Seed and the request's number

	RepetitionPenalty float64           // > 0; 0 is off (1)
	PresencePenalty   float64           // [-2, 2]
	FrequencyPenalty  float64           // [-2, 2]
	NoRepeatNGramSize int               // ≥ 1; 0 is off
	LogitBias         map[int32]float64 // added to the logits, clamped to ±100
	AllowedTokenIDs   []int32           // nil allows every token
	BadWords          []string

	Stop                []string // needs a tokenizer
	StopTokenIDs        []int32
	IncludeStopInOutput bool
	IgnoreEOS           bool
	SkipSpecialTokens   *bool // in the text; nil is true

	Logprobs       *int // nil: none; k ≥ 0: the sampled token and the k most likely; -1: the whole vocabulary
	PromptLogprobs *int
}
