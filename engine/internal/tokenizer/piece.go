package tokenizer

// Bytes returns what a token adds to a text that has begun, which may be a part of a character;
// false for a token that adds none, or is special.
func (t *Tokenizer) Bytes(id int32) (string, bool) {
	if id < 0 || int(id) >= len(t.tokens) || !t.known[id] || t.added.special[id] {
		return "", false
	}
	token := t.tokens[id]
	if b, ok := byteToken(token); ok && t.fallback() {
		return string([]byte{b}), true
	}
	s := t.NewStream(false)
	for i := range s.steps {
		switch d := s.steps[i].(type) {
		case *byteLevelDecoder: // its output would wait for whole characters
			if bytes, ok := unspell(token); ok {
				token = bytes
			}
			return token, token != ""
		case *stripText:
			d.start, d.stop = 0, 0 // of the whole text
		case *metaspaceDecoder:
			d.begun = true
		}
	}
	s.feed(id)
	text := s.Flush()
	return text, text != ""
}

// fallback reports whether tokens <0xNN> stand for bytes.
func (t *Tokenizer) fallback() bool {
	for _, start := range t.decoders {
		if _, ok := start().(*byteFallbackDecoder); ok {
			return true
		}
	}
	return false
}
