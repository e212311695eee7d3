package report

// Retryable returns the failures that are the machine's and not the code's, each once: those that a
// second run may not have.
func (r *Report) Retryable() (list []*Test) {
	for i := range r.Tests {
		if t := &r.Tests[i]; t.counts() && t.Class.Retryable() {
			list = append(list, t)
		}
	}
	return list
}

// Select returns the go test flags that select the test within its package; none for the package
// itself.
func (t *Test) Select() []string {
	if t.Name == "" {
		return nil
	}
	return selectTest(t.Name)
}
