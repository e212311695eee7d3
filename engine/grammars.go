package engine

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/enginetest/enginetest/engine/internal/grammar"
	"github.com/enginetest/enginetest/engine/internal/tokenizer"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
)

// grammars are the compiled structured outputs of an engine: a cache that its requests share. A
// grammar refers to no request, and is dropped by Sleep and Shutdown.
type grammars struct {
	ledger *ledger.Ledger

	mu    sync.Mutex
	cache *grammarCache // nil: nothing compiled yet, or dropped
	over  bool          // dropped for good
}

// grammarCache is what the cache holds. It has an owner of its own in the ledger.
type grammarCache struct {
	vocabulary *grammar.Vocabulary
	entries    map[string]*grammarEntry
	clock      int64
	holding    ledger.ID
}

type grammarEntry struct {
	grammar *grammar.Grammar
	used    int64
}

// Bounds of the cache and of what may be compiled.
const (
	maxGrammars     = 64
	maxGrammarBytes = 64 << 20 // of all grammars together
	maxGrammarStep  = 8 << 20  // of the masks and states of one
	maxGrammarText  = 256 << 10
)

// get returns the grammar of structured outputs; nil when there are none.
func (g *grammars) get(s *llm.StructuredOutputs, tok *tokenizer.Tokenizer, vocab int) (*grammar.Grammar, error) {
	if s == nil {
		return nil, nil
	}
	kind, key := s.Kinds()[0], grammarKey(s)
	if len(key) > maxGrammarText {
		return nil, paramError("StructuredOutputs."+kind, len(key), "at most 262144 bytes")
	}
	if tok == nil {
		return nil, fmt.Errorf("%w: StructuredOutputs needs one", llm.ErrNoTokenizer)
	}
	cache, found, err := g.look(key, tok, vocab)
	if err != nil || found != nil {
		return found, err
	}
	compiled, err := compileGrammar(s, cache.vocabulary)
	if e, ok := errors.AsType[*grammar.Error](err); ok {
		return nil, &llm.GrammarError{Kind: e.Kind, Where: e.Where, What: e.What, Unsupported: e.Unsupported}
	}
	if err != nil {
		return nil, err
	}
	g.keep(cache, key, compiled)
	return compiled, nil
}

func grammarKey(s *llm.StructuredOutputs) string {
	return strings.Join(append([]string{s.Kinds()[0], s.JSON, s.Regex, s.Grammar}, s.Choice...), "\x00")
}

func compileGrammar(s *llm.StructuredOutputs, v *grammar.Vocabulary) (*grammar.Grammar, error) {
	switch s.Kinds()[0] {
	case "JSON":
		return grammar.JSONSchema(s.JSON, v, maxGrammarStep)
	case "Regex":
		return grammar.Regex(s.Regex, v, maxGrammarStep)
	case "Choice":
		return grammar.Choice(s.Choice, v, maxGrammarStep)
	case "Grammar":
		return grammar.EBNF(s.Grammar, v, maxGrammarStep)
	}
	return grammar.JSONObject(v, maxGrammarStep)
}

// look returns the cache, which it makes when there is none, and the grammar if it is there.
func (g *grammars) look(key string, tok *tokenizer.Tokenizer, vocab int) (*grammarCache, *grammar.Grammar, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over {
		return nil, nil, llm.ErrStopped
	}
	if g.cache == nil {
		v := grammar.NewVocabulary(min(vocab, tok.VocabSize()), tok.Bytes)
		g.cache = &grammarCache{vocabulary: v, entries: map[string]*grammarEntry{}}
		g.cache.holding = g.ledger.Add(g.cache.entry())
	}
	e := g.cache.entries[key]
	if e == nil {
		return g.cache, nil, nil
	}
	g.cache.clock++
	e.used = g.cache.clock
	return g.cache, e.grammar, g.count()
}

// keep enters a grammar, unless the cache was dropped in the meantime, and makes room for it.
func (g *grammars) keep(cache *grammarCache, key string, compiled *grammar.Grammar) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cache != cache {
		return
	}
	cache.clock++
	cache.entries[key] = &grammarEntry{compiled, cache.clock}
	for len(cache.entries) > 1 && (len(cache.entries) > maxGrammars || cache.bytes() > maxGrammarBytes) {
		cache.evict()
	}
	_ = g.count() // the holding is live: it was added with the cache
}

// evict forgets the grammar that was not used for the longest time. A request that has it goes on.
func (c *grammarCache) evict() {
	oldest := ""
	for key, e := range c.entries {
		if oldest == "" || e.used < c.entries[oldest].used {
			oldest = key
		}
	}
	delete(c.entries, oldest)
}

func (c *grammarCache) bytes() (n int64) {
	for _, e := range c.entries {
		n += e.grammar.Bytes()
	}
	return n
}

// entry is the cache in the ledger.
func (c *grammarCache) entry() ledger.Holding {
	return ledger.Holding{Owner: "grammars", Kind: "heap", Device: "host", Bytes: c.bytes() + c.vocabulary.Bytes()}
}

// count brings the ledger up to date: grammars grow while they are used.
func (g *grammars) count() error {
	err := g.ledger.Remove(g.cache.holding)
	g.cache.holding = g.ledger.Add(g.cache.entry())
	return err
}

// drop forgets everything; for good when the engine is over.
func (g *grammars) drop(over bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = g.over || over
	if g.cache == nil {
		return nil
	}
	holding := g.cache.holding
	g.cache = nil
	return g.ledger.Remove(holding)
}

// part is the cache, for checks that hold it weakly; nil when there is none.
func (g *grammars) part() *grammarCache {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cache
}
