package chat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Templates are those of a checkpoint, with the special tokens that they may print.
type Templates struct {
	byName  map[string]*Template
	refused map[string]error // those that cannot be read: an error only for who asks for one
	special *Dict
}

// Conversation is what a template renders.
type Conversation struct {
	Messages            []any // of *Dict: role, content, …
	Tools               []any // nil: none
	AddGenerationPrompt bool  // end with what makes the model answer
	Template            string
	Extra               *Dict            // more variables; they go before the special tokens
	Now                 func() time.Time // for strftime_now; nil is time.Now
}

// Load reads the chat templates of a checkpoint's folder: chat_template.jinja,
// additional_chat_templates/NAME.jinja, and chat_template in tokenizer_config.json, a text or a
// list of named ones; as in transformers, files go first. [ErrNoTemplate] when there is none.
func Load(dir string) (*Templates, error) {
	t := &Templates{byName: map[string]*Template{}, refused: map[string]error{}, special: &Dict{}}
	if err := t.config(filepath.Join(dir, "tokenizer_config.json")); err != nil {
		return nil, err
	}
	if err := t.files(dir); err != nil {
		return nil, err
	}
	if len(t.byName)+len(t.refused) == 0 {
		return nil, fmt.Errorf("%w: neither tokenizer_config.json nor chat_template.jinja in %s has one", ErrNoTemplate,
			dir)
	}
	if err := t.refused["default"]; err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Templates) add(name, file, source string) {
	delete(t.byName, name)
	delete(t.refused, name)
	tmpl, err := Parse(file, source)
	if err != nil {
		t.refused[name] = err
		return
	}
	t.byName[name] = tmpl
}

// config reads tokenizer_config.json.
func (t *Templates) config(path string) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("chat: %w", err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return fmt.Errorf("chat: %s: %w", path, err)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !strings.HasSuffix(name, "_token") {
			continue
		}
		var text string
		var object struct{ Content *string }
		if json.Unmarshal(fields[name], &text) == nil && string(fields[name]) != "null" {
			t.special.Set(name, text)
		} else if json.Unmarshal(fields[name], &object) == nil && object.Content != nil {
			t.special.Set(name, *object.Content)
		}
	}
	raw, ok := fields["chat_template"]
	if !ok || string(raw) == "null" {
		return nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		t.add("default", "tokenizer_config.json", one)
		return nil
	}
	var many []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &many); err != nil {
		return fmt.Errorf("chat: %s: chat_template is neither a text nor a list of named texts", path)
	}
	for _, m := range many {
		t.add(m.Name, "tokenizer_config.json("+m.Name+")", m.Template)
	}
	return nil
}

// files reads templates that have files of their own.
func (t *Templates) files(dir string) error {
	more, err := filepath.Glob(filepath.Join(dir, "additional_chat_templates", "*.jinja"))
	if err != nil {
		return fmt.Errorf("chat: %w", err)
	}
	for _, path := range append(more, filepath.Join(dir, "chat_template.jinja")) {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("chat: %w", err)
		}
		name := strings.TrimSuffix(filepath.Base(path), ".jinja")
		if name == "chat_template" {
			name = "default"
		}
		t.add(name, filepath.Base(path), string(data))
	}
	return nil
}

// Names lists the templates, in order.
func (t *Templates) Names() []string {
	return slices.Sorted(func(yield func(string) bool) {
		for n := range t.byName {
			if !yield(n) {
				return
			}
		}
		for n := range t.refused {
			if !yield(n) {
				return
			}
		}
	})
}

// Render turns a conversation into a prompt, until its context ends. Without a name, it takes the
// template "tool_use" when there are tools and such a template, and else "default".
func (t *Templates) Render(ctx context.Context, c Conversation) (string, error) {
	name := c.Template
	if name == "" {
		name = "default"
		if _, ok := t.byName["tool_use"]; ok && c.Tools != nil {
			name = "tool_use"
		}
	}
	tmpl, ok := t.byName[name]
	if !ok {
		if err := t.refused[name]; err != nil {
			return "", err
		}
		return "", fmt.Errorf("%w named %q: there are %s", ErrNoTemplate, name, strings.Join(t.Names(), ", "))
	}
	vars := &Dict{}
	for _, d := range []*Dict{t.special, c.Extra} {
		for _, k := range d.Keys() {
			v, _ := d.Get(k)
			vars.Set(k, v)
		}
	}
	vars.Set("messages", c.Messages)
	vars.Set("tools", nil)
	if c.Tools != nil {
		vars.Set("tools", c.Tools)
	}
	vars.Set("documents", nil)
	vars.Set("add_generation_prompt", c.AddGenerationPrompt)
	return tmpl.Render(ctx, vars, c.Now)
}
