package llm

// SamplingParams say how a request's tokens are chosen. The zero value is greedy, 16 tokens. Names
// and ranges are vLLM's; a value outside its range is a [ParamError] that names the field and the
// bound.
//
// The tags state each parameter once, for checks, flags, JSON and documentation; [Params] reads
// them. In range, unset says what 0 means in Go, where it cannot be told from "not given"; zero
// says what 0 means everywhere.
type SamplingParams struct {
	MaxTokens int `json:"max_tokens" range:"[1,inf)" unset:"16" usage:"longest output, in tokens (default 16)"`
	MinTokens int `json:"min_tokens" usage:"mask EOS and stop ids until the output has this many tokens, at most max tokens"`
	N         int `json:"n" range:"[1,16384]" unset:"1" usage:"outputs per prompt (default 1)"` // vLLM's VLLM_MAX_N_SEQUENCES

	Temperature   float64 `json:"temperature" range:"[0,2]" usage:"0 is greedy, and so is anything below 1e-5 (default 0)"`
	TopK          int     `json:"top_k" range:"[-1,inf)" note:"0 and -1 are off" usage:"keep the k most likely tokens; 0 and -1 are off"`
	TopP          float64 `json:"top_p" range:"(0,1]" unset:"off" usage:"keep the most likely tokens that add up to p, in (0, 1]"`
	MinP          float64 `json:"min_p" range:"[0,1]" usage:"keep tokens at least p times as likely as the likeliest, in [0, 1]"`
	TypicalP      float64 `json:"typical_p" range:"(0,1]" unset:"off" usage:"locally typical sampling, in (0, 1]"`
	EpsilonCutoff float64 `json:"epsilon_cutoff" range:"[0,1)" usage:"drop tokens less likely than this, in [0, 1)"`
	Seed          *int64  `json:"seed" usage:"of this request's draws (default: from the engine's seed and the request's number)"`

	RepetitionPenalty float64           `json:"repetition_penalty" range:"(0,inf)" unset:"off" usage:"over prompt and output, above 0; 1 is off"`
	PresencePenalty   float64           `json:"presence_penalty" range:"[-2,2]" usage:"over the output, -2 to 2"`
	FrequencyPenalty  float64           `json:"frequency_penalty" range:"[-2,2]" usage:"over the output, -2 to 2"`
	NoRepeatNGramSize int               `json:"no_repeat_ngram_size" range:"[1,inf)" zero:"off" usage:"no n-gram of this size comes twice; 0 is off"`
	LogitBias         map[int32]float64 `json:"logit_bias" usage:"added to logits, clamped to ±100"`
	AllowedTokenIDs   []int32           `json:"allowed_token_ids" usage:"no other token comes out (default: every token)"`
	BadWords          []string          `json:"bad_words" usage:"a text that the output may not contain"`

	LogitsProcessors []LogitsProcessor `json:"-"` // functions: they stay in the process that made them

	StructuredOutputs *StructuredOutputs `json:"structured_outputs" usage:"a language that the output must be in, as JSON: one of json, regex, choice, grammar and json_object; needs a tokenizer"`

	Stop                []string `json:"stop" usage:"a text that ends the output; needs a tokenizer"`
	StopTokenIDs        []int32  `json:"stop_token_ids" usage:"ids that end the output"`
	IncludeStopInOutput bool     `json:"include_stop_str_in_output" usage:"keep the stop text in the output"`
	IgnoreEOS           bool     `json:"ignore_eos" usage:"go on after the end-of-sequence token"`
	SkipSpecialTokens   *bool    `json:"skip_special_tokens" usage:"leave special tokens out of the text (default true)"`

	// nil: none; k ≥ 0: the sampled token and the k most likely; -1: the whole vocabulary.
	Logprobs       *int `json:"logprobs" usage:"log-probabilities of the output: the sampled token and the k most likely; -1 is the vocabulary"`
	PromptLogprobs *int `json:"prompt_logprobs" usage:"the same for the prompt's tokens"`

	LogprobsMode LogprobsMode `json:"logprobs_mode" usage:"what both hold: raw_logprobs (the default), processed_logprobs, raw_logits or processed_logits"`
}
