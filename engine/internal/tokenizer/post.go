package tokenizer

// post is a TemplateProcessing: what stands before and behind the text.
type post struct {
	before, after []int32
	pair          []pairPart // for two texts; nil: none
}

func (p post) apply(ids []int32) []int32 {
	if len(p.before) == 0 {
		return append(ids, p.after...)
	}
	out := make([]int32, 0, len(p.before)+len(ids)+len(p.after))
	out = append(out, p.before...)
	out = append(out, ids...)
	return append(out, p.after...)
}
