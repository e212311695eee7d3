package engine

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/engine/internal/tokenizer"
	"github.com/enginetest/enginetest/llm"
)

// inputProcessor checks what callers send and turns it into tokens and parameters.
type inputProcessor struct {
	cfg  *Config
	life *lifecycle

	vocab    int
	eos      []int32
	grammars *grammars
	tok      *tokenizer.Tokenizer // nil: none; guarded by the lifecycle's lock

	pooling     llm.PoolingInfo // of a model that pools
	embedding   int             // numbers in a prompt's embedding; 0: the device takes none
	tokenTypes  int             // 0: the model tells no segments apart
	padTokenID  int32           // -1: none
	noTokenizer string          // why a tokenizer.json is not used
}

func (p *inputProcessor) eosTokenIDs() []int32 { return p.eos }

// checked is a request whose parameters are in order.
type checked struct {
	req    *Request
	tokens []int32
	params sample.Params
	rules  rules
	tok    *tokenizer.Tokenizer
	pool   *poolRules // of a request that pools
	embeds *promptEmbeds
}

func (p *inputProcessor) checkAll(ctx context.Context, reqs []Request) ([]*checked, error) {
	ks := make([]*checked, len(reqs))
	for i := range reqs {
		k, err := p.check(ctx, &reqs[i])
		if err != nil {
			return nil, ofRequest(err, reqs[i].ID, i, len(reqs))
		}
		ks[i] = k
	}
	return ks, nil
}

// check resolves one request, without its number. It refuses a prompt that is too long before it
// does any work on it.
func (p *inputProcessor) check(ctx context.Context, q *Request) (*checked, error) {
	p.life.mu.Lock()
	tok, refused := p.tok, p.life.refusal()
	p.life.mu.Unlock()
	if refused != nil {
		return nil, refused
	}
	if p.cfg.Task != llm.TaskGenerate {
		return nil, p.cfg.taskError("generate", llm.TaskGenerate)
	}
	l := limits{vocab: p.vocab, eos: p.eos, tok: tok, maxLen: p.cfg.MaxModelLen}
	most := p.cfg.MaxModelLen - 1
	tokens := q.PromptTokenIDs
	embeds, err := p.checkEmbeds(q)
	if err != nil {
		return nil, err
	}
	if embeds != nil {
		tokens = make([]int32, len(embeds.rows)) // in the places of tokens that there are none of
	}
	if tokens == nil {
		if tok == nil {
			return nil, fmt.Errorf("%w: %s; a text prompt needs one, PromptTokenIDs do not", llm.ErrNoTokenizer,
				p.whyNoTokenizer())
		}
		if tokens, err = encodePrompt(ctx, tok, q.Prompt, most); err != nil {
			return nil, err
		}
	}
	if len(tokens) == 0 {
		return nil, paramError("the prompt", "empty", "at least one token")
	}
	if len(tokens) > most {
		return nil, tooBig(strconv.Itoa(len(tokens)), most)
	}
	if err := checkTokens(q, tokens, l); err != nil {
		return nil, err
	}
	params, rules, err := resolveParams(ctx, q.Sampling, l)
	if err != nil {
		return nil, err
	}
	if params.Grammar, err = p.grammars.get(q.Sampling.StructuredOutputs, tok, p.vocab); err != nil {
		return nil, err
	}
	return &checked{req: q, tokens: tokens, params: params, rules: rules, tok: tok, embeds: embeds}, nil
}

// encodePrompt turns a prompt into at most a number of tokens.
func encodePrompt(ctx context.Context, tok *tokenizer.Tokenizer, prompt string, most int) ([]int32, error) {
	tokens, err := tok.EncodeAtMost(ctx, prompt, true, most)
	if long, ok := errors.AsType[*tokenizer.TooLongError](err); ok {
		return nil, tooBig(fmt.Sprintf("at least %d", long.AtLeast), most)
	}
	if err != nil {
		return nil, fmt.Errorf("engine: not started: %w", ended(ctx))
	}
	return tokens, nil
}

func tooBig(tokens string, most int) error {
	return fmt.Errorf("%w: %s tokens, at most %d with MaxModelLen %d and one token of output", llm.ErrPromptTooBig, tokens,
		most, most+1)
}

func (p *inputProcessor) whyNoTokenizer() string {
	if p.cfg.SkipTokenizer {
		return "Config.SkipTokenizer is set"
	}
	if p.noTokenizer != "" {
		return p.noTokenizer
	}
	return p.cfg.Model + " has no tokenizer.json"
}

// checkTokens refuses ids that the model has no embedding for. A tokenizer may give such: it can
// have tokens that the model was never resized for.
func checkTokens(q *Request, tokens []int32, l limits) error {
	for i, id := range tokens {
		switch {
		case id >= 0 && int(id) < l.vocab:
		case q.PromptTokenIDs != nil:
			return checkID(fmt.Sprintf("PromptTokenIDs[%d]", i), id, l.vocab)
		default:
			return paramError(
				"Prompt", fmt.Sprintf("one whose token %d is %d (%q) to the tokenizer", i, id, l.tok.Token(id)),
				fmt.Sprintf("made of the model's vocabulary, ids in [0, %d)", l.vocab),
			)
		}
	}
	return nil
}

func (p *inputProcessor) encode(text string) ([]int32, error) {
	tok, err := p.tokenizer()
	if err != nil {
		return nil, err
	}
	return tok.Encode(text, true), nil
}

func (p *inputProcessor) decode(ids []int32) (string, error) {
	tok, err := p.tokenizer()
	if err != nil {
		return "", err
	}
	return tok.Decode(ids, true), nil
}

func (p *inputProcessor) tokenizer() (*tokenizer.Tokenizer, error) {
	p.life.mu.Lock()
	defer p.life.mu.Unlock()
	if p.tok == nil && p.life.state != Stopped {
		return nil, llm.ErrNoTokenizer
	}
	if p.tok == nil {
		return nil, p.life.refusal()
	}
	return p.tok, nil
}
