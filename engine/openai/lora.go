package openai

import (
	"cmp"
	"fmt"
	"strings"
)

// loraModule is another name for the model. It changes no token: there are no adapters here, only
// their names, for what routes by them.
type loraModule struct {
	name string
	path string // "" is the name
}

// parseLoRA reads NAME and NAME=PATH, as vLLM's --lora-modules has them.
func parseLoRA(list []string) (modules []loraModule) {
	for _, text := range list {
		name, path, _ := strings.Cut(text, "=")
		modules = append(modules, loraModule{name, path})
	}
	return modules
}

// checkLoRA reports names that cannot be told from another.
func checkLoRA(list []string, model string) error {
	seen := map[string]bool{model: true}
	for _, m := range parseLoRA(list) {
		if m.name == "" || seen[m.name] {
			return fmt.Errorf("openai: LoRA has the name %q, must be names that differ from each other and from %q", m.name, model)
		}
		seen[m.name] = true
	}
	return nil
}

// loraCards describe the names.
func (s *Server) loraCards() (cards []card) {
	for _, m := range s.lora {
		c := card{ID: m.name, Object: "model", Created: s.created, OwnedBy: "enginetest", Root: cmp.Or(m.path, m.name)}
		c.Parent = &s.name
		cards = append(cards, c)
	}
	return cards
}

// modelName is the name that a request has for the model.
func (c *common) modelName(s *Server) string {
	if c.Model == nil {
		return s.name
	}
	return *c.Model
}
