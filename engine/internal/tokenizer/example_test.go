package tokenizer_test

import (
	"fmt"

	"github.com/enginetest/enginetest/engine/internal/tokenizer"
)

func ExampleLoad() {
	tok, err := tokenizer.Load("testdata/llama3/tokenizer.json")
	if err != nil {
		panic(err)
	}
	ids := tok.Encode("The lighthouse", true)
	for _, id := range ids {
		fmt.Printf("%q\n", tok.Token(id))
	}
	fmt.Printf("%q\n", tok.Decode(ids, true))
	// Output:
	// "<|begin_of_text|>"
	// "The"
	// "Ġlighthouse"
	// "The lighthouse"
}

func ExampleTokenizer_NewStream() {
	tok, err := tokenizer.Load("testdata/gpt2/tokenizer.json")
	if err != nil {
		panic(err)
	}
	s := tok.NewStream(true)
	for _, id := range tok.Encode("a 🦀!", false) {
		fmt.Printf("%q ", s.Push(id))
	}
	fmt.Printf("%q\n", s.Flush())
	// Output:
	// "a" " " "" "🦀" "!" ""
}

func ExampleParse() {
	_, err := tokenizer.Parse([]byte(`{"model": {"type": "Unigram", "vocab": []}}`))
	fmt.Println(err)
	// Output:
	// checkpoint: tokenizer.json: model.type: unknown model: got "Unigram", want "BPE"
}
