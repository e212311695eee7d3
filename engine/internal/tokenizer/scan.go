package tokenizer

import "unicode/utf8"

// pattern is a split pattern as a scanner: next gives the end of the match at s[i:], or i when
// nothing matches there. Regular expressions of Go have no look-ahead; a general engine that has is
// ten times slower than these.
type pattern interface {
	next(s string, i int) int
}

// words is the family that began with GPT-2's pattern: alternatives in the order contraction, word,
// number, punctuation, line ends, spaces.
type words struct {
	contractions contractions
	lead         class // what cannot stand before a word in its piece; 0: only ' ' can (GPT-2)
	letters      letters
	tail         contractions // after a word (o200k)
	digits       int          // most digits in a piece; 0: any number, after an optional ' ' (GPT-2)
	noDigits     bool         // numbers match nothing (they were split off before)
	asciiWord    bool         // an ASCII punctuation mark takes the ASCII letters behind it (DeepSeek)
	properPunct  bool         // punctuation is [\p{P}\p{S}] (DeepSeek), else [^\s\p{L}\p{N}]
	slash        bool         // line ends and slashes behind punctuation; else only line ends
	newlines     bool         // \s*[\r\n]+ is an alternative, and punctuation takes the line ends behind it
}

type contractions int

const (
	noContractions contractions = iota
	lowerOnly                   // 's 't 're 've 'm 'll 'd
	anyCase
)

type letters int

const (
	plain     letters = iota // \p{L}+
	withMarks                // [\p{L}\p{M}]+, and punctuation has no marks
	byCase                   // o200k: upper* lower+ | upper+ lower*, where other letters and marks are both
)

// The patterns in the wild, with the checkpoints that have them.
var patterns = map[string]pattern{
	gpt2Pattern: gpt2,
	// Llama 3, GPT-4 in the spelling of Hugging Face's converter
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: words{
		contractions: anyCase, lead: letter | number | newline, digits: 3, newlines: true,
	},
	// Qwen 2, 2.5, 3
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: words{
		contractions: anyCase, lead: letter | number | newline, digits: 1, newlines: true,
	},
	// Qwen 3.5
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: words{
		contractions: anyCase, lead: letter | number | newline, letters: withMarks, digits: 1, newlines: true,
	},
	// GPT-4 in tiktoken's spelling
	`'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`: words{
		contractions: anyCase, lead: letter | number | newline, digits: 3, newlines: true,
	},
	// GPT-4o
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`: words{
		lead: letter | number | newline, letters: byCase, tail: anyCase, digits: 3, slash: true, newlines: true,
	},
	// Mistral's tekken
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`: words{
		lead: letter | number | newline, letters: byCase, digits: 1, slash: true, newlines: true,
	},
	// DeepSeek V3, R1: three splits in a row
	`\p{N}{1,3}`:   runs{of: number, most: 3},
	`[一-龥぀-ゟ゠-ヿ]+`: cjk{},
	"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+": words{
		lead: letter | punct | symbol | newline, letters: withMarks, noDigits: true, asciiWord: true, properPunct: true,
		newlines: true,
	},
}

// gpt2Pattern is what the ByteLevel pre-tokenizer splits with.
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

var gpt2 = words{contractions: lowerOnly}

func at(s string, i int) (rune, class, int) {
	if i >= len(s) {
		return -1, 0, 0
	}
	if c := s[i]; c < utf8.RuneSelf {
		return rune(c), asciiClass[c], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return r, lookup(r), n
}

func (w words) next(s string, i int) int {
	r, c, n := at(s, i)
	if r == '\'' && w.contractions != noContractions {
		if end := contraction(s, i, w.contractions); end > i {
			return end
		}
	}
	if w.asciiWord && r < utf8.RuneSelf && c&(punct|symbol) != 0 {
		if end := asciiLetters(s, i+1); end > i+1 {
			return end
		}
	}
	if end := w.word(s, i, r, c, n); end > i {
		return end
	}
	if end := w.number(s, i, r, c); end > i {
		return end
	}
	if end := w.punctuation(s, i, r); end > i {
		return end
	}
	if c&space != 0 {
		return w.spaces(s, i)
	}
	return i
}

// word matches letters, with one other character before them when the pattern allows it.
func (w words) word(s string, i int, r rune, c class, n int) int {
	led := r == ' '
	if w.lead != 0 {
		led = n > 0 && c&w.lead == 0
	}
	for _, match := range w.letterRuns() {
		if led {
			if end := match(s, i+n); end > i+n {
				return w.withTail(s, end)
			}
		}
		if end := match(s, i); end > i {
			return w.withTail(s, end)
		}
	}
	return i
}

func (w words) withTail(s string, end int) int {
	if w.tail != noContractions {
		return contraction(s, end, w.tail)
	}
	return end
}

var (
	plainRun  = []func(string, int) int{func(s string, i int) int { return run(s, i, letter, -1) }}
	markedRun = []func(string, int) int{func(s string, i int) int { return run(s, i, letter|mark, -1) }}
	casedRuns = []func(string, int) int{casedLower, casedUpper}
)

func (w words) letterRuns() []func(string, int) int {
	switch w.letters {
	case plain:
		return plainRun
	case withMarks:
		return markedRun
	}
	return casedRuns
}

// casedLower matches [upper and caseless]*[lower and caseless]+, where caseless is other letters and marks. The first part takes all that it
// can; when then nothing is left for the second, it gives back as far as the last caseless one.
func casedLower(s string, i int) int {
	j, lastCaseless := i, i
	for j < len(s) {
		_, c, n := at(s, j)
		if c&(letter|mark) == 0 || c&lower != 0 {
			break
		}
		j += n
		if c&upper == 0 {
			lastCaseless = j
		}
	}
	end := j
	for end < len(s) {
		_, c, n := at(s, end)
		if c&(letter|mark) == 0 || c&upper != 0 {
			break
		}
		end += n
	}
	if end > j {
		return end
	}
	return lastCaseless
}

// casedUpper matches [upper and caseless]+[lower and caseless]* where casedLower matched nothing: there is no lower part then.
func casedUpper(s string, i int) int {
	for i < len(s) {
		_, c, n := at(s, i)
		if c&(letter|mark) == 0 || c&lower != 0 {
			break
		}
		i += n
	}
	return i
}

// number matches digits.
func (w words) number(s string, i int, r rune, c class) int {
	switch {
	case w.noDigits:
		return i
	case w.digits > 0:
		return run(s, i, number, w.digits)
	case r == ' ':
		if end := run(s, i+1, number, -1); end > i+1 {
			return end
		}
		return i
	case c&number != 0:
		return run(s, i, number, -1)
	}
	return i
}

// punctuation matches what is neither space, letter nor number, after an optional ' ', and the line ends behind it.
func (w words) punctuation(s string, i int, r rune) int {
	start := i
	if r == ' ' {
		start++
	}
	others := space | letter | number
	if w.letters == withMarks {
		others |= mark
	}
	end := start
	for end < len(s) {
		_, c, n := at(s, end)
		if c&others != 0 || w.properPunct && c&(punct|symbol) == 0 {
			break
		}
		end += n
	}
	if end == start {
		return i
	}
	for w.newlines && end < len(s) && (s[end] == '\r' || s[end] == '\n' || w.slash && s[end] == '/') {
		end++
	}
	return end
}

// spaces matches from a space on: through the last line end of the run, when the pattern has that alternative; or else the run but for its
// last character, which goes to what follows; or all of it when nothing follows or it is one character.
func (w words) spaces(s string, i int) int {
	end, last, afterNewline := i, i, -1
	for end < len(s) {
		_, c, n := at(s, end)
		if c&space == 0 {
			break
		}
		last = end
		end += n
		if c&newline != 0 {
			afterNewline = end
		}
	}
	switch {
	case w.newlines && afterNewline >= 0:
		return afterNewline
	case end < len(s) && last > i:
		return last
	}
	return end
}

// run matches at most most characters of a class; -1 is any number.
func run(s string, i int, of class, most int) int {
	for i < len(s) && most != 0 {
		_, c, n := at(s, i)
		if c&of == 0 {
			break
		}
		i += n
		most--
	}
	return i
}

func asciiLetters(s string, i int) int {
	for i < len(s) && (s[i]|0x20) >= 'a' && (s[i]|0x20) <= 'z' {
		i++
	}
	return i
}

// contraction matches 's, 't, 're, 've, 'm, 'll or 'd, and gives i when there is none.
func contraction(s string, i int, kind contractions) int {
	if i >= len(s) || s[i] != '\'' {
		return i
	}
	a, n := fold(s, i+1, kind)
	switch a {
	case 's', 't', 'm', 'd':
		return i + 1 + n
	case 'r', 'v', 'l':
		b, m := fold(s, i+1+n, kind)
		if a == 'l' && b == 'l' || a != 'l' && b == 'e' {
			return i + 1 + n + m
		}
	}
	return i
}

// fold gives the letter at i in lower case. U+017F, the long s, is an s where case does not matter.
func fold(s string, i int, kind contractions) (byte, int) {
	switch {
	case i >= len(s):
		return 0, 0
	case kind == anyCase && len(s) >= i+2 && s[i:i+2] == "ſ":
		return 's', 2
	case kind == anyCase && s[i] >= 'A' && s[i] <= 'Z':
		return s[i] | 0x20, 1
	}
	return s[i], 1
}

// runs matches up to most characters of a class.
type runs struct {
	of   class
	most int
}

func (p runs) next(s string, i int) int { return run(s, i, p.of, p.most) }

// cjk matches [一-龥぀-ゟ゠-ヿ]+: common Han, Hiragana and Katakana.
type cjk struct{}

func (cjk) next(s string, i int) int {
	for i < len(s) {
		r, n := utf8.DecodeRuneInString(s[i:])
		if (r < '一' || r > '龥') && (r < '\u3040' || r > '\u30ff') {
			break
		}
		i += n
	}
	return i
}
