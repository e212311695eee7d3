package sample

// Drawn is a token that was drawn, and its log-probabilities, when they are asked for.
type Drawn struct {
	Token    int32
	Logprobs []Logprob
}

// Verify draws the tokens that follow a sequence of which the next ones were proposed: row i of
// rows, which it overwrites, has the logits after the first i drafts. It draws as [Sampler.Draw]
// does, row after row, until a token is not the draft that was proposed for its place: that one
// replaces the draft, and the rows after it are of a text that was not written. When every draft is
// accepted, the last row adds one more token.
//
// This is rejection sampling (arXiv:2211.17192) of a proposal that is certain of its token: a draft
// x is accepted with the target's probability p(x), and else replaced by a draw from the other
// tokens. Because one draw of the target decides both, the tokens are those that it draws without
// drafts, and not only distributed like them.
//
// The accepted drafts are appended to st.Output, in whose memory the owner writes the same tokens
// afterwards. An error is that of the first draw; one after it is left to the step that comes to
// its token again.
func (s *Sampler) Verify(st *State, drafts []int32, rows []float32) (first Drawn, more []Drawn, err error) {
	width := len(rows) / (len(drafts) + 1)
	for i := 0; ; i++ {
		var d Drawn
		d.Token, d.Logprobs, err = s.Draw(st, rows[i*width:(i+1)*width:(i+1)*width])
		switch {
		case err != nil && i == 0:
			return d, nil, err
		case err != nil:
			return first, more, nil
		case i == 0:
			first = d
		default:
			more = append(more, d)
		}
		if i == len(drafts) || d.Token != drafts[i] {
			return first, more, nil
		}
		st.Output = append(st.Output, d.Token)
		if st.Complete() {
			return first, more, nil
		}
	}
}
