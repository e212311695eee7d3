package tokenizer

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Stream decodes token by token. A piece of text is given out as soon as no later token can change
// it: the bytes of an unfinished character are held back, and in a vocabulary with byte fallback so
// is a run of byte tokens until it ends (one wrong byte makes all of it U+FFFD). All pieces
// together, Flush's included, are exactly Decode of all ids.
type Stream struct {
	t           *Tokenizer
	skipSpecial bool
	steps       []decoder
	out         strings.Builder
}

// NewStream starts a stream; with skipSpecial it leaves special tokens out.
func (t *Tokenizer) NewStream(skipSpecial bool) *Stream {
	s := &Stream{t: t, skipSpecial: skipSpecial}
	for _, start := range t.decoders {
		s.steps = append(s.steps, start())
	}
	return s
}

// Push adds a token and returns the text that is now certain, often "".
func (s *Stream) Push(id int32) string {
	s.feed(id)
	return s.take()
}

// Flush ends the stream and returns the rest. A character that was never finished is U+FFFD.
func (s *Stream) Flush() string {
	for i := range s.steps {
		s.steps[i].end(func(text string) { s.run(i+1, text) })
	}
	return s.take()
}

// Pending is what Flush would give now, and leaves the stream as it is: the text that a later token
// can still change.
func (s *Stream) Pending() string {
	peek := Stream{t: s.t, steps: make([]decoder, len(s.steps))}
	for i, step := range s.steps {
		peek.steps[i] = step.clone()
	}
	return peek.Flush()
}

func (s *Stream) feed(id int32) {
	if id < 0 || int(id) >= len(s.t.tokens) || !s.t.known[id] || s.skipSpecial && s.t.added.special[id] {
		return
	}
	s.run(0, s.t.tokens[id])
}

// run passes text through the steps from step i on.
func (s *Stream) run(i int, text string) {
	if i == len(s.steps) {
		s.out.WriteString(text)
		return
	}
	s.steps[i].push(text, func(text string) { s.run(i+1, text) })
}

func (s *Stream) take() string {
	text := s.out.String()
	s.out.Reset()
	return text
}

// decoder is a step of decoding, with its state. Some steps work on tokens, some on the text that
// Fuse and ByteLevel make of all of them.
type decoder interface {
	push(token string, emit func(string))
	end(emit func(string))
	clone() decoder
}

type newDecoder func() decoder

// eachToken is a step without state.
type eachToken func(string) string

func (f eachToken) push(token string, emit func(string)) { emit(f(token)) }
func (eachToken) end(func(string))                       {}
func (f eachToken) clone() decoder                       { return f }

// byteLevelDecoder turns spelled bytes back into bytes and those into text.
type byteLevelDecoder struct{ held []byte }

func (d *byteLevelDecoder) push(token string, emit func(string)) {
	if bytes, ok := unspell(token); ok {
		token = bytes
	}
	d.held = append(d.held, token...)
	tail := incompleteTail(d.held)
	whole := len(d.held) - tail
	if whole > 0 {
		emit(validUTF8(string(d.held[:whole])))
		d.held = append(d.held[:0], d.held[whole:]...)
	}
}

func (d *byteLevelDecoder) end(emit func(string)) {
	if len(d.held) > 0 {
		emit(validUTF8(string(d.held)))
	}
	d.held = nil
}

func (d *byteLevelDecoder) clone() decoder { return &byteLevelDecoder{slices.Clone(d.held)} }

// byteFallbackDecoder turns a run of tokens <0xNN> into text: all of it, or one U+FFFD for each
// when it is not UTF-8.
type byteFallbackDecoder struct{ held []byte }

func (d *byteFallbackDecoder) push(token string, emit func(string)) {
	if b, ok := byteToken(token); ok {
		d.held = append(d.held, b)
		return
	}
	d.end(emit)
	emit(token)
}

func (d *byteFallbackDecoder) end(emit func(string)) {
	switch {
	case len(d.held) == 0:
		return
	case utf8.Valid(d.held):
		emit(string(d.held))
	default:
		for range d.held {
			emit(string(utf8.RuneError))
		}
	}
	d.held = d.held[:0]
}

func (d *byteFallbackDecoder) clone() decoder { return &byteFallbackDecoder{slices.Clone(d.held)} }

// byteToken reads <0xNN>.
func byteToken(token string) (byte, bool) {
	if len(token) != 6 || !strings.HasPrefix(token, "<0x") || token[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(token[3:5], 16, 8)
	return byte(b), err == nil
}

// stripToken removes up to start leading and stop trailing occurrences of a character from every
// token.
func stripToken(char string, start, stop int) eachToken {
	return func(token string) string {
		for i := 0; i < start && strings.HasPrefix(token, char); i++ {
			token = token[len(char):]
		}
		for i := 0; i < stop && strings.HasSuffix(token, char); i++ {
			token = token[:len(token)-len(char)]
		}
		return token
	}
}

// stripText does the same to the whole text: at its beginning at once; what may be its end is held
// back.
type stripText struct {
	char        string
	start, stop int
	held        int // characters held back
}

func (d *stripText) push(text string, emit func(string)) {
	for d.start > 0 && text != "" {
		if !strings.HasPrefix(text, d.char) {
			d.start = 0
			break
		}
		text = text[len(d.char):]
		d.start--
	}
	if text == "" {
		return
	}
	if d.stop == 0 {
		emit(text)
		return
	}
	body := strings.TrimRight(text, d.char)
	trailing := (len(text) - len(body)) / len(d.char)
	if body != "" {
		emit(strings.Repeat(d.char, d.held) + body)
		d.held = 0
	}
	d.held += trailing
	if surplus := d.held - d.stop; surplus > 0 { // only the last stop of them can be the end
		emit(strings.Repeat(d.char, surplus))
		d.held = d.stop
	}
}

func (d *stripText) end(func(string)) { d.held = 0 }

func (d *stripText) clone() decoder { c := *d; return &c }

// metaspaceDecoder writes the visible character as a space again; the first token loses it instead
// when the encoder had added one.
type metaspaceDecoder struct {
	replacement string
	added       bool
	begun       bool
}

func (d *metaspaceDecoder) push(token string, emit func(string)) {
	space := " "
	if d.added && !d.begun {
		space = ""
	}
	d.begun = true
	emit(strings.ReplaceAll(token, d.replacement, space))
}

func (*metaspaceDecoder) end(func(string)) {}

func (d *metaspaceDecoder) clone() decoder { c := *d; return &c }

// joinWithSpaces stands in for a decoder when the file has none.
type joinWithSpaces struct{ begun bool }

func (d *joinWithSpaces) push(token string, emit func(string)) {
	if d.begun {
		token = " " + token
	}
	d.begun = true
	emit(token)
}

func (*joinWithSpaces) end(func(string)) {}

func (d *joinWithSpaces) clone() decoder { c := *d; return &c }
