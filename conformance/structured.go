package conformance

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"

	"github.com/enginetest/enginetest/llm"
)

// structured are the properties of outputs that must be in a language, one per kind.
var structured = []property{
	{
		name:  "structured/choice",
		why:   "a router that asks for one of its labels must not have to parse anything else",
		needs: []Capability{Text, StructuredOutput},
		check: inLanguage(llm.StructuredOutputs{Choice: choices}, func(text string) bool {
			return slices.Contains(choices, text)
		}),
	},
	{
		name:  "structured/regular expression",
		why:   "the whole answer matches, not a part of it",
		needs: []Capability{Text, StructuredOutput},
		check: inLanguage(llm.StructuredOutputs{Regex: pattern}, regexp.MustCompile(`^(?:`+pattern+`)$`).MatchString),
	},
	{
		name:  "structured/JSON schema",
		why:   "what is decoded into a struct must be whole JSON with the right names, types and bounds",
		needs: []Capability{Text, StructuredOutput},
		check: inLanguage(llm.StructuredOutputs{JSON: schema}, isReading),
	},
	{
		name:  "structured/grammar",
		why:   "what nests must be closed, which no regular expression can say",
		needs: []Capability{Text, StructuredOutput},
		check: inLanguage(llm.StructuredOutputs{Grammar: nested}, isNested),
	},
}

const (
	pattern = `[a-f]{3}-[0-9]{2,4}(:[xyz])?`
	schema  = `{"type": "object", "properties": {"unit": {"enum": ["m", "s"]}, "value": {"type": "integer", "minimum": -20, "maximum": 300}},
		"required": ["unit", "value"], "additionalProperties": false}`
	nested = `root ::= "(" (root | [a-z]{1,3}) ")"`
)

var choices = []string{"north", "south", "north by east"}

// inLanguage asks for several answers, greedy and drawn.
func inLanguage(with llm.StructuredOutputs, ok func(text string) bool) func(c *check) error {
	return func(c *check) error {
		l, err := c.engine()
		if err != nil {
			return err
		}
		ended := 0
		for i := range 4 {
			q := c.s.prompt(i, llm.SamplingParams{MaxTokens: 120, StructuredOutputs: &with})
			if i > 0 {
				q.Sampling.Temperature = 1
			}
			got, err := l.one(c, q)
			if err != nil {
				return err
			}
			if got.FinishReason == llm.FinishLength {
				continue // the begin of an answer
			}
			ended++
			if !ok(got.Text) {
				return fmt.Errorf("the answer is not in the language\n%s\n  got  %s", requests([]llm.Request{q}), answer(got))
			}
		}
		if ended == 0 {
			return lacks(StructuredOutput, "no answer ended within 120 tokens")
		}
		return nil
	}
}

// isReading reports whether a text is what the schema says.
func isReading(text string) bool {
	var v map[string]any
	if json.Unmarshal([]byte(text), &v) != nil || len(v) != 2 {
		return false
	}
	n, ok := v["value"].(float64)
	return ok && (v["unit"] == "m" || v["unit"] == "s") && n == float64(int(n)) && n >= -20 && n <= 300
}

// isNested reports whether a text is a word in pairs of parentheses.
func isNested(text string) bool {
	open := 0
	for open < len(text) && text[open] == '(' {
		open++
	}
	if open == 0 || len(text) < 2*open {
		return false
	}
	word, end := text[open:len(text)-open], text[len(text)-open:]
	for _, c := range end {
		if c != ')' {
			return false
		}
	}
	return regexp.MustCompile(`^[a-z]{1,3}$`).MatchString(word)
}
