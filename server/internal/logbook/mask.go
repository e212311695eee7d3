package logbook

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Masked stands for a secret in logs, command lines and errors.
const Masked = "[masked]"

// secretName matches names of variables and flags whose values are secret.
var secretName = regexp.MustCompile(`(?i)(token|secret|passw|api[-_]?key|access[-_]?key|private[-_]?key|credential|authorization)`)

// notSecret are names that secretName matches and that hold no secret.
var notSecret = regexp.MustCompile(`(?i)(max|num|min|batched|prefill|special|spaces)[-_a-z]*tokens?|tokenizer|token[-_]?ids?|tokens[-_]|_tokens$|-tokens$`)

// minSecret is the length below which a found value is not masked: "true" is no secret, and would
// be masked everywhere.
const minSecret = 6

func isSecret(name string) bool { return secretName.MatchString(name) && !notSecret.MatchString(name) }

// Masker replaces the secrets of a command, and others.
func Masker(command, env, others []string) *strings.Replacer {
	var secrets []string
	for _, kv := range env {
		if k, v, _ := strings.Cut(kv, "="); isSecret(k) {
			secrets = append(secrets, v)
		}
	}
	secrets = append(secrets, FlagValues(command, isSecret)...)
	for _, s := range slices.Concat(command, env) {
		_, v, _ := strings.Cut(s, "=")
		for _, text := range []string{s, v} {
			if u, err := url.Parse(text); err == nil && u.User != nil {
				p, _ := u.User.Password()
				secrets = append(secrets, p)
			}
		}
	}
	secrets = slices.DeleteFunc(secrets, func(s string) bool { return len(s) < minSecret })
	for _, s := range others {
		if s != "" {
			secrets = append(secrets, s)
		}
	}
	// of two that begin alike, the longer first
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, s := range slices.Compact(secrets) {
		pairs = append(pairs, s, Masked)
	}
	return strings.NewReplacer(pairs...)
}

// FlagValues returns the values of the flags whose names match: "--api-key K" and "--api-key=K".
func FlagValues(command []string, match func(name string) bool) (values []string) {
	for i, a := range command {
		name, value, has := strings.Cut(a, "=")
		switch {
		case !strings.HasPrefix(a, "-") || !match(name):
		case has:
			values = append(values, value)
		case i+1 < len(command):
			values = append(values, command[i+1])
		}
	}
	return values
}
