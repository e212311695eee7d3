package grammar

import "fmt"

// Choice matches one of several texts.
func Choice(texts []string, v *Vocabulary, limit int64) (*Grammar, error) {
	const kind = "choice"
	if len(texts) == 0 {
		return nil, &Error{Kind: kind, What: "no text"}
	}
	var all alt
	for i, s := range texts {
		if s == "" {
			return nil, &Error{Kind: kind, Where: fmt.Sprintf("text %d", i), What: "is empty"}
		}
		all = append(all, literal(s))
	}
	return newGrammar(kind, rules{all}, v, limit)
}
