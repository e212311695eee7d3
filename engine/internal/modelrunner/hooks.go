package modelrunner

// Hooks are called before what they are named for; an error of theirs is its error. nil hooks are
// not called. A hook may panic: the runner can still be closed.
type Hooks struct {
	Load     func() error                          // the weights are bound
	Allocate func(owner string, bytes int64) error // device memory is allocated
	Forward  func() error                          // a step's forward pass
	Sample   func() error                          // a step's rows are sampled; not in a step that samples none
	Release  func(owner string, bytes int64) error // a part is released in Close; an error leaves it where it is
}

// Call calls a hook, unless it is nil.
func Call(hook func() error) error {
	if hook == nil {
		return nil
	}
	return hook()
}
