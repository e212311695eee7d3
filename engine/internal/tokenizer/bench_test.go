package tokenizer

import (
	"strings"
	"testing"
)

const english = "The lighthouse keeper watched the harbour, and the storm's engine didn't finish until 1987. " +
	"\"Nobody remembers,\" she wrote, \"what we'd carried down the river; it wasn't much.\"\n"

func BenchmarkEncode(b *testing.B) {
	text := strings.Repeat(english, 6000) // 1 MB
	for _, name := range made {
		tok := load(b, name)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				tok.Encode(text, true)
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, name := range []string{"llama3", "llama2"} {
		tok := load(b, name)
		ids := tok.Encode(strings.Repeat(english, 600), true)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(600 * len(english)))
			for b.Loop() {
				tok.Decode(ids, true)
			}
		})
	}
}
